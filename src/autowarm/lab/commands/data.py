"""`autowarm data`: make or check token shards."""

import shlex
import sys
from pathlib import Path

from ..config.build import parse
from ..errors import UsageError, nearest
from ..registry import either

_KINDS = {
    "fineweb": "make token shards of FineWeb's 10-billion-token sample",
    "folder": "make token shards of the text or parquet files in PATH",
    "check": "check the shards in PATH against their checksums",
}


def run(argv: list[str]) -> int:
    """Make or check token shards."""
    kind, rest = (argv[0], argv[1:]) if argv else ("", [])
    helped = bool({"-h", "--help", "--help-all"} & set(argv))
    if helped and kind not in ("fineweb", "folder"):
        listed = "".join(f"  {name:<9} {about}\n" for name, about in _KINDS.items())
        print(f"usage: autowarm data KIND [PATH] [options]\n\n{listed}\nInterrupted, the same command goes on. "
              "Options: `autowarm data folder --help`.")  # fmt: skip
        return 0
    if kind not in _KINDS:
        said = (
            f"unknown kind of data {kind!r}; {nearest(kind, _KINDS)}"
            if kind
            else f"data needs a kind: {either(_KINDS)}"
        )
        raise UsageError(f"{said}; autowarm data --help says what each does")

    from ..data.tokenise import FINEWEB, SAMPLE, ShardsConfig, contents, documents, fineweb, make_shards

    path = Path()
    if kind != "fineweb" and not helped:
        if not rest or rest[0].startswith("-"):
            raise UsageError(f"data {kind} needs a folder: autowarm data {kind} PATH")
        path, rest = Path(rest[0]), rest[1:]
    if kind == "check":
        if rest:
            raise UsageError(f"data check takes a folder alone, got also {' '.join(rest)}")
        from ..data.shards import check

        print(f"{check(path)} shards in {path} are whole")
        return 0
    place, usage = f"data/{kind}", f"data {kind}{' PATH' * (kind == 'folder')}"
    about = "Token shards with a manifest: counts, checksums, tokenizer."
    config = parse(rest, ShardsConfig, usage, about, defaults={"out": place})
    files = contents(path) if kind == "folder" else None  # a missing folder is told of before a missing tokenizer
    source, stream = (
        (f"{FINEWEB} {SAMPLE}", fineweb) if kind == "fineweb" else (str(path.resolve()), lambda: documents(path))
    )

    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=not sys.stderr.isatty()) as bar:
        shown = bar.add_task("tokenising", total=config.tokens)

        def advance(tokens: int, count: int) -> None:
            bar.update(shown, completed=tokens, description=f"{tokens / 1e6:,.1f}M tokens, {count:,} documents")

        manifest = make_shards(config, source, stream, advance, files)
    shards, folder = manifest["shards"], config.out
    print(f"{manifest['tokens']:,} tokens of {manifest['documents']:,} documents in {len(shards)} shards in {folder}")
    vocab_size = -(-manifest["tokenizer"]["vocab_size"] // 128) * 128  # matrix products like multiples of 128
    print(f"train on them: autowarm train --data.corpus {shlex.quote(folder)} --model.vocab_size {vocab_size}")
    return 0
