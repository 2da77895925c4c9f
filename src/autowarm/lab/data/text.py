"""Text to tokens.

The embedded corpus is on every machine: the interpreter's own documentation and standard-library source. It is
tokenised once, by a byte-level BPE learnt from its training part, and cached; a checksum detects a damaged cache. A
folder of text files, or one file, is treated the same way. A folder of token shards needs no tokenising.
"""

import hashlib
import logging
import math
import os
import sysconfig
from collections.abc import Container, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..config import DataConfig, LabError
from ..files import write_atomically
from ..registry import either
from .shards import Corpus, Tokens, is_sharded, read_shards

logger = logging.getLogger(__name__)

VALIDATION_SHARE = 0.08
END_OF_TEXT = "<|endoftext|>"
_SUFFIXES = (".py", ".md", ".rst", ".txt")  # of the files that hold documents
# Of the standard library: tests, games, bundled packages, and `encodings` with a very long table for each code page.
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo",
            "__pycache__", "ensurepip", "encodings", "pydoc_data", "lib-dynload"}  # fmt: skip
_LARGEST = 2**18  # characters of a document; more of a file are several
_SMALLEST = 256  # of the documents into which the only file of a corpus is split
_FORMAT = 2  # of the cache; raise it when the same text gives different tokens


def cache_folder() -> Path:
    """Return `$AUTOWARM_CACHE`, or autowarm's folder in the user's cache."""
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("AUTOWARM_CACHE") or users / "autowarm")


@lru_cache(maxsize=4)
def prepare(data: DataConfig, vocab_size: int) -> Corpus:
    """Return the corpus as tokens, from the cache if that is intact; otherwise build and cache it.

    Processes may build it at the same time: each atomically writes a file with the same tokens.
    """
    if data.corpus != "python" and is_sharded(Path(data.corpus)):
        return read_shards(Path(data.corpus), vocab_size)
    texts = read_documents(data)
    key = hashlib.sha256(f"{_FORMAT} {vocab_size} {VALIDATION_SHARE}".encode())
    for name, text in texts:
        key.update(f"\0{name}\0".encode() + text.encode())
    path = cache_folder() / f"corpus-{key.hexdigest()[:16]}.safetensors"
    if (parts := _open(path)) is None:
        if path.exists():
            logger.warning("the token cache %s is damaged; rebuilding it", path)
        write_atomically(path, _build(texts, vocab_size))
        parts = _open(path)
        assert parts is not None
    return Corpus("python" if data.corpus == "python" else Path(data.corpus).name, *parts)


def _open(path: Path) -> tuple[str, Tokens, Tokens] | None:
    """Return a cached corpus's checksum and its parts mapped into memory; None if it is missing or damaged."""
    try:
        with safe_open(path, "pt") as file:
            expected = (file.metadata() or {}).get("sha256")
            train, val = (file.get_tensor(part).numpy() for part in ("train", "val"))
    except (OSError, SafetensorError):
        return None
    digest = hashlib.sha256(train.data)
    digest.update(val.data)
    return (expected, train, val) if expected == digest.hexdigest() else None


def read_documents(data: DataConfig) -> list[tuple[str, str]]:
    """Return (relative name, text) of as many documents as `max_bytes` hold, and of one at least.

    The files are read in the order of their names' hashes, which mixes code and documentation. A large file is several
    documents; the only file of a corpus is about 64.
    """
    sources: dict[str, str | Path] = {}
    root = Path(data.corpus)
    if data.corpus == "python":
        root = Path(sysconfig.get_path("stdlib"))
        files = [path for path in files_in(root, _SKIPPED) if path.suffix == ".py"]
        with suppress(ImportError):  # some distributions leave it out; the source alone is enough
            from pydoc_data.topics import topics

            sources = {f"documentation/{name}": text for name, text in topics.items()}
    else:
        root, files = (root.parent, [root]) if root.is_file() else (root, files_in(root))
    sources |= {path.relative_to(root).as_posix(): path for path in files}
    documents: list[tuple[str, str]] = []
    total = 0
    for name in sorted(sources, key=lambda name: _hash("order " + name)):
        source = sources[name]
        for number, text in enumerate([source] if isinstance(source, str) else pieces_of(source, len(sources) == 1)):
            total += len(text.encode())
            if total > data.max_bytes and documents:
                return documents
            documents.append((f"{name}/{number}" if number else name, text))
    return documents


def files_in(root: Path, skipped: Container[str] = ()) -> list[Path]:
    """Return the files of documents in a folder and its subfolders, but for these; LabError if there are none."""
    files: list[Path] = []
    for folder, inner, names in os.walk(root):  # `rglob` would walk through what is skipped, often most of the files
        inner[:] = [name for name in inner if name not in skipped]
        paths = (Path(folder, name) for name in names if os.path.splitext(name)[1].lower() in _SUFFIXES)
        files += [path for path in paths if path.name not in skipped and path.is_file()]
    if files:
        return sorted(files, key=str)
    what = f"{root} has no {either(_SUFFIXES)} file" if root.is_dir() else f"no folder {root}"
    hint = "data.corpus is a text file, a folder of these or of token shards, or 'python', which is on every machine"
    raise LabError(f"{what}; {hint}")


def pieces_of(path: Path, alone: bool = False) -> Iterator[str]:
    """Yield a text file whole or, if it is large, in pieces up to an end of a line, or of a paragraph if `alone`."""
    try:
        size = min(_LARGEST, max(_SMALLEST, path.stat().st_size // 64)) if alone else _LARGEST
        end = "\n\n" if alone else "\n"
        with open(path, encoding="utf-8", errors="replace") as file:
            while text := file.read(size):
                while size <= len(text) < 2 * size and not text.endswith(end) and (line := file.readline(size)):
                    text += line
                yield text
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error}") from None


def _hash(name: str) -> float:
    """Hash a file's name to a number in [0, 1) that never depends on the machine or the process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64


def _build(texts: list[tuple[str, str]], vocab_size: int) -> bytes:
    """Return the cache file of a corpus: both parts' tokens, with their checksum and the tokenizer as metadata."""
    places = [_hash("split " + name) for name, _ in texts]
    # Of few documents, all may lie on one side; then the nearest one changes sides.
    share = min(max(VALIDATION_SHARE, math.nextafter(min(places, default=0.0), 1.0)), max(places, default=1.0))
    parts: dict[str, list[str]] = {"train": [], "val": []}
    for (_, text), place in zip(texts, places, strict=True):
        parts["val" if place < share else "train"].append(text)
    if not all(parts.values()):
        raise LabError(f"the corpus has {len(texts)} documents, too few for a training and a validation part: cut them")
    tokenizer = learnt_tokenizer(parts["train"], vocab_size)
    end, digest, tokens = tokenizer.token_to_id(END_OF_TEXT), hashlib.sha256(), {}
    for part, documents in parts.items():
        encodings = map(tokenizer.encode, documents)  # one by one: an encoding takes a hundred times a text's memory
        tokens[part] = np.fromiter((token for each in encodings for token in (end, *each.ids)), np.uint16)
        digest.update(tokens[part].tobytes())
    return save(tokens, metadata={"sha256": digest.hexdigest(), "tokenizer": tokenizer.to_str()})


def learnt_tokenizer(texts: list[str], vocab_size: int) -> Any:
    """Train a byte-level BPE on the texts. What looks like its end-of-text token in a text, it encodes as text."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size, min_frequency=0, special_tokens=[END_OF_TEXT], show_progress=False)
    tokenizer._tokenizer.encode_special_tokens = True
    return tokenizer
