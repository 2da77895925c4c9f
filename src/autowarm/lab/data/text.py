"""Text to tokens.

The embedded corpus is on every machine: the interpreter's own documentation and standard-library source. It is
tokenised once, by a byte-level BPE learnt from its training part, and cached; a checksum detects a damaged cache. A
folder of text or parquet files, or one file, is treated the same way. A folder of token shards needs no tokenising.
"""

import hashlib
import heapq
import logging
import math
import os
import sysconfig
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..config import DataConfig, LabError
from ..files import write_atomically
from ..registry import either
from .shards import Corpus, Tokens, is_sharded, read_shards

if TYPE_CHECKING:
    from tokenizers import ByteLevelBPETokenizer

logger = logging.getLogger(__name__)

VALIDATION_SHARE = 0.08
END_OF_TEXT = "<|endoftext|>"
_SUFFIXES = (".py", ".md", ".rst", ".txt", ".parquet")  # of the files that hold documents
# Of the standard library: tests, games, bundled packages, and `encodings` with a very long table for each code page.
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo",
            "__pycache__", "ensurepip", "encodings", "pydoc_data", "lib-dynload"}  # fmt: skip
_LARGEST = 2**18  # characters of a document; more of a file are several
_SMALLEST = 256  # of the documents into which the only file of a corpus is split
_TOGETHER = 4  # documents that are encoded at a time: an encoding takes a hundred times a text's memory
_FORMAT = 2  # of the cache; raise it when the same text gives different tokens


def cache_folder() -> Path:
    """Return `$AUTOWARM_CACHE`, or autowarm's folder in the user's cache."""
    if given := os.environ.get("AUTOWARM_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autowarm"


@lru_cache(maxsize=4)
def prepare(data: DataConfig, vocab_size: int) -> Corpus:
    """Return the corpus as tokens, from the cache if that is intact; otherwise build and cache it.

    Processes may build it at the same time: each atomically writes a file with the same tokens.
    """
    if data.corpus != "python" and is_sharded(Path(data.corpus)):
        return read_shards(Path(data.corpus), vocab_size)
    texts = _select(read_documents(data), data.max_bytes)
    key = hashlib.sha256(f"{_FORMAT} {vocab_size} {VALIDATION_SHARE}".encode())
    for name, text in texts:
        key.update(f"\0{name}\0".encode() + text.encode())
    path = cache_folder() / f"corpus-{key.hexdigest()[:16]}.safetensors"
    if (found := _open(path)) is None:
        if path.exists():
            logger.warning("the token cache %s is damaged; rebuilding it", path)
        write_atomically(path, _build(texts, vocab_size))
        found = _open(path)
        assert found is not None
    return Corpus("python" if data.corpus == "python" else Path(data.corpus).name, *found)


def _open(path: Path) -> tuple[str, Tokens, Tokens] | None:
    """Return a cached corpus's checksum and its parts mapped into memory; None if it is missing or damaged."""
    try:
        with safe_open(path, "pt") as file:
            noted = (file.metadata() or {}).get("sha256")
            train, val = (file.get_tensor(part).numpy() for part in ("train", "val"))
    except (OSError, SafetensorError):
        return None
    digest = hashlib.sha256(train.data)
    digest.update(val.data)
    return (noted, train, val) if noted == digest.hexdigest() else None


def read_documents(data: DataConfig) -> Iterator[tuple[str, str]]:
    """Yield (relative name, text) of every document. A large file is read, and yielded, in pieces."""
    if data.corpus == "python":
        root = Path(sysconfig.get_path("stdlib"))
        files = [path for path in files_in(root, _SKIPPED) if path.suffix == ".py"]
        with suppress(ImportError):  # some distributions leave it out; the source alone is enough
            from pydoc_data.topics import topics

            yield from ((f"documentation/{name}", text) for name, text in topics.items())
    else:
        given = Path(data.corpus)
        root, files = (given.parent, [given]) if given.is_file() else (given, files_in(given))
    for path in files:
        name, rows = path.relative_to(root).as_posix(), _holds_rows(path)
        for number, text in enumerate(texts_of(path, alone=len(files) == 1)):
            yield name + (f"/{number}" if rows or number else ""), text


def files_in(root: Path, skipped: Container[str] = ()) -> list[Path]:
    """Return the files of documents in a folder and its subfolders, but for these; LabError if there are none."""
    files: list[Path] = []
    for folder, inner, names in os.walk(root):  # `rglob` would walk through what is skipped, often most of the files
        inner[:] = [name for name in inner if name not in skipped]
        found = (Path(folder, name) for name in names if os.path.splitext(name)[1].lower() in _SUFFIXES)
        files += [path for path in found if path.name not in skipped and path.is_file()]
    if files:
        return sorted(files, key=str)
    what = f"{root} has no {either(_SUFFIXES)} file" if root.is_dir() else f"no folder {root}"
    hint = "data.corpus is a text file, a folder of these or of token shards, or 'python', which is on every machine"
    raise LabError(f"{what}; {hint}")


def texts_of(path: Path, alone: bool = False) -> Iterator[str]:
    """Yield a parquet file's rows or a text file's pieces, about 64 if it is `alone`; LabError if it is unreadable."""
    try:
        size = min(_LARGEST, max(_SMALLEST, path.stat().st_size // 64)) if alone else _LARGEST
        yield from _rows(path) if _holds_rows(path) else pieces_of(path, size, "\n\n" if alone else "\n")
    except (OSError, ValueError) as error:
        raise LabError(f"{path} cannot be read: {error}") from None


def _holds_rows(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def pieces_of(path: Path, size: int, end: str) -> Iterator[str]:
    """Yield a text file whole or, if it has more characters than `size`, in pieces up to an `end`, at most twice it."""
    looked = False
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(size)
        while True:
            while size <= len(text) < 2 * size and not text.endswith(end) and (line := file.readline(size)):
                text += line
            if not looked and "\ufffd" in text:
                looked = True
                if not _is_utf8(path):
                    logger.warning("%s is not all UTF-8: U+FFFD stands for the rest; convert the file to UTF-8", path)
            yield text
            if not (text := file.read(size)):
                return


def _is_utf8(path: Path) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            return all(iter(lambda: file.read(_LARGEST), ""))
    except UnicodeDecodeError:
        return False


def _rows(path: Path) -> Iterator[str]:
    """Yield the texts of a parquet file, row by row, without those that are null."""
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(path)
    columns = ", ".join(f"{field.name} ({field.type})" for field in file.schema_arrow)
    if "text" not in file.schema_arrow.names:
        raise LabError(f"{path} has no column 'text'; its columns are {columns}")
    for rows in file.iter_batches(256, columns=["text"]):
        for text in rows.column(0).to_pylist():
            if isinstance(text, str):
                yield text
            elif text is not None:
                raise LabError(f"{path}: the column 'text' holds no text; the columns are {columns}")


def _hash(name: str) -> float:
    """Hash a file's name to a number in [0, 1) that never depends on the machine or the process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64


def _select(texts: Iterable[tuple[str, str]], max_bytes: int) -> list[tuple[str, str]]:
    """Choose as many documents as fit, in the order of their names' hashes, which mixes code and documentation.

    The documents are taken one by one, and no more than ``max_bytes`` of them and one document are held: whatever does
    not fit behind those of smaller hashes is dropped, and with it all of larger ones.
    """
    held: list[tuple[float, int, str, str]] = []  # a heap with the largest hash first
    total, cut = 0, math.inf
    for number, (name, text) in enumerate(texts):
        if (place := _hash("order " + name)) < cut:
            heapq.heappush(held, (-place, -number, name, text))
            total += len(text.encode())
            while total > max_bytes and len(held) > 1:
                last = heapq.heappop(held)
                total, cut = total - len(last[3].encode()), -last[0]
    return [(name, text) for *_, name, text in sorted(held, reverse=True)]


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
        pieces = (documents[first : first + _TOGETHER] for first in range(0, len(documents), _TOGETHER))
        encodings = chain.from_iterable(map(tokenizer.encode_batch, pieces))
        tokens[part] = np.fromiter((token for each in encodings for token in (end, *each.ids)), np.uint16)
        digest.update(tokens[part].tobytes())
    return save(tokens, metadata={"sha256": digest.hexdigest(), "tokenizer": tokenizer.to_str()})


def learnt_tokenizer(texts: list[str], vocab_size: int) -> "ByteLevelBPETokenizer":
    """Train a byte-level BPE on the texts. What looks like its end-of-text token in a text, it encodes as text."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size, min_frequency=0, special_tokens=[END_OF_TEXT], show_progress=False)
    tokenizer._tokenizer.encode_special_tokens = True
    return tokenizer
