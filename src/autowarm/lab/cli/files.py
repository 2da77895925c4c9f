"""`autowarm report` and `data`: commands on folders, and what commands show of results."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..config import LabError, UsageError, nearest
from ..config.build import parse

if TYPE_CHECKING:
    from ..analysis.results import Results

__all__ = ["Parser", "complain", "data", "present", "report"]

_KINDS = {
    "fineweb": "make token shards of FineWeb's 10-billion-token sample",
    "folder": "make token shards of the text or parquet files in PATH",
    "check": "check the shards in PATH against their checksums",
}


class Parser(argparse.ArgumentParser):
    """argparse that raises our UsageError."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog.removeprefix('autowarm ')}: {message}")


def report(argv: list[str]) -> int:
    """Make the table, the figures and the page of a results folder again."""
    parser = Parser("autowarm report", description="Make the table, the figures and the HTML report again.")
    parser.add_argument("folder", nargs="?", default="runs/compare", type=Path, help="of a comparison or a sweep")
    folder = parser.parse_args(argv).folder

    from ..analysis.results import read_results

    present(read_results(folder))()
    return 0


def present(results: "Results") -> Callable[[], None]:
    """Make the figures and the page; return a function that prints the table and the paths."""
    from rich.console import Console

    from ..analysis import report, table

    files = report.make(results)

    def show() -> None:
        console = Console(highlight=False)
        table.show(results.summaries, results.failed, console)
        for path in (results.folder / "results.json", *files.figures, files.report):
            console.print(str(path), markup=False, soft_wrap=True)

    return show


def complain(failed: Mapping[str, str]) -> None:
    """Raise LabError if runs failed, listing each distinct message once with its runs."""
    said: dict[str, list[str]] = {}
    for label, message in failed.items():
        said.setdefault(message, []).append(label)
    if said:
        listed = "\n".join(f"  {', '.join(labels)}: {message}" for message, labels in said.items())
        raise LabError(f"failed runs: {len(failed)} (error.txt in a run's folder says where)\n{listed}")


def data(argv: list[str]) -> int:
    """Make or check token shards."""
    kind, rest = (argv[0], argv[1:]) if argv else ("", [])
    if kind in ("", "-h", "--help"):
        listed = "".join(f"  {name:<9} {about}\n" for name, about in _KINDS.items())
        print(f"usage: autowarm data KIND [PATH] [options]\n\n{listed}\nInterrupted, the same command goes on. "
              "Options: `autowarm data folder --help`.")  # fmt: skip
        return 0 if kind else 2
    if kind not in _KINDS:
        raise UsageError(f"unknown kind of data {kind!r}; {nearest(kind, _KINDS)}")

    from ..data.tokenise import FINEWEB, SAMPLE, ShardsConfig, documents, fineweb, make_shards

    path = Path()
    if kind != "fineweb" and not (rest and rest[0] in ("-h", "--help", "--help-all")):
        if not rest or rest[0].startswith("-"):
            raise UsageError(f"data {kind} needs a folder: autowarm data {kind} PATH")
        path, rest = Path(rest[0]), rest[1:]
    if kind == "check":
        if rest:
            raise UsageError(f"data check takes a folder alone, got also {' '.join(rest)}")
        from ..data.shards import check

        print(f"{check(path)} shards in {path} are whole")
        return 0
    config = parse(rest, ShardsConfig, f"data {kind}", "Token shards with a manifest: counts, checksums, tokenizer.")
    source, stream = (
        (f"{FINEWEB} {SAMPLE}", fineweb) if kind == "fineweb" else (str(path.resolve()), lambda: documents(path))
    )

    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=not sys.stderr.isatty()) as bar:
        shown = bar.add_task("tokenising", total=config.tokens)

        def advance(tokens: int, count: int) -> None:
            bar.update(shown, completed=tokens, description=f"{tokens / 1e6:,.1f}M tokens, {count:,} documents")

        manifest = make_shards(config, source, stream, advance)
    shards, folder = manifest["shards"], config.out
    print(f"{manifest['tokens']:,} tokens of {manifest['documents']:,} documents in {len(shards)} shards in {folder}")
    vocab_size = -(-manifest["tokenizer"]["vocab_size"] // 128) * 128  # matrix products like multiples of 128
    print(f"train on them: autowarm train --data.corpus {folder} --model.vocab_size {vocab_size}")
    return 0
