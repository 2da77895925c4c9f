"""Text to tokens.

The embedded corpus is on every machine: the interpreter's own documentation and standard-library source. It is
tokenised once by a byte-level BPE learnt from its training part and kept in a cache that is checked by checksums.
So is a folder of text or parquet. A folder of token shards is read as it is.
"""

import hashlib
import logging
import os
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..config import DataConfig, LabError
from ..files import write_atomically
from .shards import Corpus, Tokens, is_sharded, read_shards

logger = logging.getLogger(__name__)

VALIDATION_SHARE = 0.08
END_OF_TEXT = "<|endoftext|>"
TEXT = {".py", ".md", ".rst", ".txt"}
# Not libraries but tests, games, bundled packages and one very long table per code page.
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo",
            "__pycache__", "ensurepip", "encodings", "pydoc_data", "lib-dynload"}  # fmt: skip
_FORMAT = 1  # of the cache; raise it when the way from text to tokens changes


def cache_folder() -> Path:
    """`$AUTOWARM_CACHE`, or autowarm's folder in the user's cache."""
    if given := os.environ.get("AUTOWARM_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autowarm"


@lru_cache(maxsize=4)
def prepare(data: DataConfig, vocab_size: int) -> Corpus:
    """The corpus in tokens, from the cache where it holds them whole, and otherwise built.

    Builders that run side by side do no harm: each puts a whole file of the same tokens in place.
    """
    if data.corpus != "python" and is_sharded(Path(data.corpus)):
        return read_shards(Path(data.corpus), vocab_size)
    texts = _select(_read(data), data.max_bytes)
    key = hashlib.sha256(f"{_FORMAT} {vocab_size} {VALIDATION_SHARE}".encode())
    for name, text in texts:
        key.update(f"\0{name}\0".encode() + text.encode())
    path = cache_folder() / f"corpus-{key.hexdigest()[:16]}.safetensors"
    if (found := _open(path)) is None:
        if path.exists():
            logger.warning("the token cache %s is damaged and is built again", path)
        write_atomically(path, _build(texts, vocab_size))
        found = _open(path)
        assert found is not None
    return Corpus("python" if data.corpus == "python" else Path(data.corpus).name, *found)


def _open(path: Path) -> tuple[str, Tokens, Tokens] | None:
    """Checksum of a cached corpus, and its parts mapped into memory; None where it is not there or not whole."""
    try:
        with safe_open(path, "pt") as file:
            noted = (file.metadata() or {}).get("sha256")
            train, val = (file.get_tensor(part).numpy() for part in ("train", "val"))
    except (OSError, SafetensorError):
        return None
    digest = hashlib.sha256(train.data)
    digest.update(val.data)
    return (noted, train, val) if noted == digest.hexdigest() else None


def _read(data: DataConfig) -> Iterator[tuple[str, str]]:
    """(relative name, text) of every document."""
    if data.corpus == "python":
        root, suffixes = Path(sysconfig.get_path("stdlib")), {".py"}
        try:
            from pydoc_data.topics import topics
        except ImportError:  # some distributions leave it out; the source alone is enough
            pass
        else:
            yield from ((f"documentation/{name}", text) for name, text in topics.items())
    else:
        root, suffixes = Path(data.corpus), TEXT | {".parquet"}
        if not root.is_dir():
            raise LabError(
                f"data.corpus: no folder {root}; give 'python', which is on every machine, a folder of .py, .md, .rst, "
                ".txt or .parquet files, or one of token shards, as `autowarm data fineweb` makes it"
            )
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if path.suffix in suffixes and not _SKIPPED & set(relative.parts) and path.is_file():
            if path.suffix == ".parquet":
                yield from ((f"{relative.as_posix()}/{row}", text) for row, text in enumerate(_rows(path)))
            else:
                yield relative.as_posix(), path.read_text(encoding="utf-8", errors="replace")


def _rows(path: Path) -> Iterator[str]:
    """The texts of a parquet file, row by row."""
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(path)
    if "text" not in file.schema_arrow.names:
        raise LabError(f"{path} has no column 'text'; its columns are {', '.join(file.schema_arrow.names)}")
    for rows in file.iter_batches(columns=["text"]):
        yield from rows.column(0).to_pylist()


def _hash(name: str) -> float:
    """A file's name as a number in [0, 1), the same everywhere and always."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64


def _select(texts: Iterator[tuple[str, str]], max_bytes: int) -> list[tuple[str, str]]:
    """As many documents as fit, in the order of a hash of their names, which mixes packages and documentation."""
    chosen: list[tuple[str, str]] = []
    total = 0
    for name, text in sorted(texts, key=lambda item: _hash("order " + item[0])):
        total += len(text.encode())
        if total > max_bytes and chosen:
            break
        chosen.append((name, text))
    return chosen


def _build(texts: list[tuple[str, str]], vocab_size: int) -> bytes:
    """The file of a corpus: both parts' tokens, with their checksum and the tokenizer beside them."""
    from tokenizers import ByteLevelBPETokenizer

    parts: dict[str, list[str]] = {"train": [], "val": []}
    for name, text in texts:
        parts["val" if _hash("split " + name) < VALIDATION_SHARE else "train"].append(text)
    if not all(parts.values()):
        raise LabError(f"the corpus has {len(texts)} files, too few for a training and a validation part")
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        parts["train"], vocab_size, min_frequency=0, special_tokens=[END_OF_TEXT], show_progress=False
    )
    digest, tokens = hashlib.sha256(), {}
    for part, documents in parts.items():
        encodings = tokenizer.encode_batch([END_OF_TEXT + document for document in documents])
        tokens[part] = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), dtype=np.uint16)
        digest.update(tokens[part].tobytes())
    return save(tokens, metadata={"sha256": digest.hexdigest(), "tokenizer": tokenizer.to_str()})
