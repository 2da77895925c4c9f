"""Text to tokens to batches.

The embedded corpus is on every machine: the interpreter's own documentation and standard-library source. It is
tokenised once by a byte-level BPE learnt from its training part and kept in a cache that is checked by checksums.
A batch is a pure function of (seed, step): there is no loader state, so nothing has to be saved to resume exactly.
"""

import hashlib
import json
import logging
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .config import DataConfig, LabError
from .files import sha256

Tokens: TypeAlias = npt.NDArray[np.uint16]

logger = logging.getLogger(__name__)

VALIDATION_SHARE = 0.08
END_OF_TEXT = "<|endoftext|>"
# Not libraries but tests, games, bundled packages and one very long table per code page.
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo",
            "__pycache__", "ensurepip", "encodings", "pydoc_data", "lib-dynload"}  # fmt: skip
_FORMAT = 1  # of the cache; raise it when the way from text to tokens changes


@dataclass(frozen=True)
class Corpus:
    """Tokens of a training and a validation part that share no file.

    Attributes:
        name: what the text is.
        sha256: of the tokens, both parts.
        train: training tokens.
        val: validation tokens.
    """

    name: str
    sha256: str
    train: Tokens
    val: Tokens

    @property
    def tokens(self) -> int:
        """Tokens in both parts."""
        return len(self.train) + len(self.val)


def cache_folder() -> Path:
    """`$AUTOWARM_CACHE`, or autowarm's folder in the user's cache."""
    if given := os.environ.get("AUTOWARM_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autowarm"


@lru_cache(maxsize=4)
def prepare(data: DataConfig, vocab_size: int) -> Corpus:
    """The corpus in tokens, from the cache where it holds them whole, and otherwise built.

    Builders that run side by side do no harm: each works in a folder of its own and the first to finish is kept.
    """
    texts = _select(_read(data), data.max_bytes)
    key = hashlib.sha256(f"{_FORMAT} {vocab_size} {VALIDATION_SHARE}".encode())
    for name, text in texts:
        key.update(f"\0{name}\0".encode() + text.encode())
    folder = cache_folder() / f"corpus-{key.hexdigest()[:16]}"
    if not _whole(folder):
        if folder.exists():
            logger.warning("the token cache %s is damaged and is built again", folder)
        _build(texts, vocab_size, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    train, val = (np.load(folder / f"{part}.npy", mmap_mode="r", allow_pickle=False) for part in ("train", "val"))
    return Corpus("python" if data.corpus == "python" else Path(data.corpus).name, manifest["sha256"], train, val)


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
        root, suffixes = Path(data.corpus), {".py", ".md", ".rst", ".txt"}
        if not root.is_dir():
            raise LabError(f"data.corpus: no folder {root}; give 'python' or a folder of .py, .md, .rst or .txt files")
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if path.suffix in suffixes and not _SKIPPED & set(relative.parts) and path.is_file():
            yield relative.as_posix(), path.read_text(encoding="utf-8", errors="replace")


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


def _build(texts: list[tuple[str, str]], vocab_size: int, folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    parts: dict[str, list[str]] = {"train": [], "val": []}
    for name, text in texts:
        parts["val" if _hash("split " + name) < VALIDATION_SHARE else "train"].append(text)
    if not all(parts.values()):
        raise LabError(f"the corpus has {len(texts)} files, too few for a training and a validation part")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(parts["train"], trainer)

    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building-"))
    try:
        tokenizer.save(str(scratch / "tokenizer.json"))
        digest = hashlib.sha256()
        for part, documents in parts.items():
            ids: list[int] = []
            for encoding in tokenizer.encode_batch([END_OF_TEXT + document for document in documents]):
                ids += encoding.ids
            tokens = np.array(ids, dtype=np.uint16)
            digest.update(tokens.tobytes())
            np.save(scratch / f"{part}.npy", tokens, allow_pickle=False)
        files = {path.name: sha256(path) for path in sorted(scratch.iterdir())}
        (scratch / "manifest.json").write_text(json.dumps({"sha256": digest.hexdigest(), "files": files}))
        _install(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _install(scratch: Path, folder: Path) -> None:
    """Moves a finished build into place; one that another process has finished meanwhile is as good."""
    for _ in range(2):
        try:
            os.replace(scratch, folder)
            return
        except OSError:  # there is something: whole, then it is the same; or damaged, then it gives way
            if _whole(folder):
                return
            shutil.rmtree(folder, ignore_errors=True)
    raise LabError(f"cannot put the tokens into {folder}: delete it, or set AUTOWARM_CACHE to a writable folder")


def _whole(folder: Path) -> bool:
    try:
        files = json.loads((folder / "manifest.json").read_text())["files"]
        return {"train.npy", "val.npy", "tokenizer.json"} <= set(files) and all(
            sha256(folder / name) == digest for name, digest in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def batch(tokens: Tokens, seed: int, step: int, batch_size: int, seq_len: int) -> npt.NDArray[np.int64]:
    """The global batch of one step, shape (batch_size, seq_len + 1): inputs and, shifted by one, targets.

    A counter-based generator keyed by (seed, step) draws the positions: any process can make any batch at any time.
    """
    if len(tokens) <= seq_len:
        raise LabError(f"a sequence needs {seq_len + 1} tokens, the corpus part has {len(tokens)}")
    random = np.random.Generator(np.random.Philox(key=np.array([seed, step], dtype=np.uint64)))
    return _windows(tokens, random.integers(0, len(tokens) - seq_len, size=batch_size), seq_len)


def validation_batches(tokens: Tokens, count: int, batch_size: int, seq_len: int) -> Iterator[npt.NDArray[np.int64]]:
    """Windows evenly spread over the whole validation part: the same for every run and every seed."""
    if len(tokens) <= seq_len:
        raise LabError(f"a sequence needs {seq_len + 1} tokens, the validation part has {len(tokens)}")
    starts = np.linspace(0, len(tokens) - seq_len - 1, num=count * batch_size).astype(np.int64)
    for chunk in np.split(starts, count):
        yield _windows(tokens, chunk, seq_len)


def _windows(tokens: Tokens, starts: npt.NDArray[np.int64], seq_len: int) -> npt.NDArray[np.int64]:
    return np.asarray(tokens[starts[:, None] + np.arange(seq_len + 1)], dtype=np.int64)
