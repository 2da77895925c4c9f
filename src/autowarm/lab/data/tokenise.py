"""Documents to token shards: FineWeb from the hub, or text and parquet files from a folder.

Documents are streamed in pieces, which threads tokenise; both tokenizers release Python's lock. Every shard ends at the
end of a piece, and the manifest records the stream's position there, so that the same command continues from it.
"""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..config import LabError, differences, require
from ..files import locked, sha256, write_json
from .batches import read_ahead
from .shards import MANIFEST, SCHEMA, read_manifest, write_shard
from .text import END_OF_TEXT, files_in, texts_of

logger = logging.getLogger(__name__)

FINEWEB, SAMPLE = "HuggingFaceFW/fineweb", "sample-10BT"
_INSTEAD = (
    "Without the network, train on the embedded corpus (data.corpus 'python', the default), or make shards from your "
    "own documents, with a tokenizer of your own: autowarm data folder PATH --tokenizer FILE"
)
_PIECE = 256  # documents that a thread tokenises at a time, at most


@dataclass(frozen=True)
class ShardsConfig:
    """Which token shards to make.

    Args:
        out: folder for the shards.
        tokens: stop after this many tokens, validation included; null takes all.
        shard_tokens: approximate number of tokens in a shard.
        val_tokens: approximate number of tokens in the validation part, which is made of the first documents.
        tokenizer: "gpt2", from tiktoken, or the path of a tokenizer.json of the library tokenizers.
        workers: threads that tokenise; null is one per core.
    """

    out: str = "data/fineweb"
    tokens: int | None = None
    shard_tokens: int = 100_000_000
    val_tokens: int = 10_000_000
    tokenizer: str = "gpt2"
    workers: int | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "shard_tokens", "val_tokens", "workers"):
            value = getattr(self, name)
            require(value is None or value > 0, f"{name} must be at least 1, got {value}")
        enough = self.tokens is None or self.tokens > self.val_tokens
        require(enough, f"tokens must exceed val_tokens={self.val_tokens}, got {self.tokens}: lower val_tokens")


@dataclass(frozen=True)
class Encoder:
    """A tokenizer."""

    about: dict[str, Any]  # its name, its vocabulary size and whatever else identifies it
    end: int  # the end-of-text token, which precedes each document
    encode: Callable[[str], npt.NDArray[Any]]

    def __call__(self, documents: list[str]) -> npt.NDArray[np.uint16]:
        """Concatenate the documents' tokens, each preceded by the end-of-text token."""
        end = np.array([self.end], dtype=np.uint16)
        return np.concatenate([part for text in documents for part in (end, self.encode(text).astype(np.uint16))])


def load_encoder(name: str) -> Encoder:
    """Load GPT-2's BPE from tiktoken, or a tokenizer from a file.

    Raises:
        LabError: the file is missing or unusable, or tiktoken cannot fetch GPT-2's vocabulary.
    """
    if name == "gpt2":
        import tiktoken

        try:
            gpt2 = tiktoken.get_encoding("gpt2")
        except Exception as error:  # without a network, requests raises many kinds
            raise LabError(
                f"GPT-2's vocabulary cannot be fetched ({type(error).__name__}). Set TIKTOKEN_CACHE_DIR to a folder "
                f"that tiktoken has filled elsewhere, or give --tokenizer a tokenizer.json. {_INSTEAD}"
            ) from None
        about = {"name": "gpt2", "library": "tiktoken", "vocab_size": gpt2.n_vocab}
        return Encoder(about, gpt2.eot_token, lambda text: gpt2.encode_to_numpy(text, disallowed_special=()))
    from tokenizers import Tokenizer

    path = Path(name)
    if not path.is_file():
        raise LabError(f"--tokenizer {name}: neither 'gpt2' nor a file")
    try:
        tokenizer = Tokenizer.from_file(name)
    except Exception as error:
        raise LabError(f"--tokenizer {name}: not a tokenizer.json of the library tokenizers: {error}") from None
    tokenizer.encode_special_tokens = True  # a document that names one holds its letters, as with GPT-2's above
    tokenizer.no_truncation()  # transformers stores the length of its last call in the file
    tokenizer.no_padding()
    end = tokenizer.token_to_id(END_OF_TEXT)
    if end is None:
        raise LabError(f"--tokenizer {name}: it has no token {END_OF_TEXT}, which separates the documents")
    if (size := tokenizer.get_vocab_size()) > 2**16:
        raise LabError(f"--tokenizer {name}: {size} tokens do not fit into 16 bits")
    about = {"name": path.name, "library": "tokenizers", "vocab_size": size, "sha256": sha256(path)}
    return Encoder(about, end, lambda text: np.array(tokenizer.encode(text, add_special_tokens=False).ids))


def fineweb() -> Any:
    """Stream FineWeb's 10-billion-token sample."""
    import datasets

    try:
        return datasets.load_dataset(FINEWEB, name=SAMPLE, split="train", streaming=True).select_columns("text")
    except Exception as error:  # the hub's client raises a dozen kinds for this
        reason = " ".join(str(error).split())[:160]
        raise LabError(f"FineWeb cannot be reached ({type(error).__name__}: {reason}). {_INSTEAD}") from None


def documents(folder: Path) -> Any:
    """Stream a folder's documents, file by file."""
    import datasets

    files = [str(path) for path in files_in(folder)]
    return datasets.IterableDataset.from_generator(_documents_in, gen_kwargs={"files": files, "alone": len(files) == 1})


def contents(folder: Path) -> str:
    """Describe a folder's files: how many there are, their size, and a hash of their names and sizes."""
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files_in(folder)}
    return f"{len(sizes)} of {sum(sizes.values())} bytes, {sha256(repr(sizes).encode())[:8]}"


def _documents_in(files: list[str], alone: bool) -> Iterator[dict[str, str]]:
    for name in files:
        yield from ({"text": text} for text in texts_of(Path(name), alone))


def make_shards(
    config: ShardsConfig,
    source: str,
    open_stream: Callable[[], Any],
    report: Callable[[int, int], None] | None = None,
    files: str | None = None,
) -> dict[str, Any]:
    """Make the shards that do not exist yet, and return the manifest. The first shard is the validation part.

    Args:
        source: where the documents come from; pass the same value to continue an interrupted call.
        open_stream: makes a `datasets.IterableDataset` with a column "text".
        report: called after each piece with the numbers of tokens and documents so far.
        files: the `contents` of a folder: the stream's position is the number of a file, so they must not change.

    Raises:
        LabError: the folder holds shards from another source or files, or the stream broke off; finished shards
            are kept.
    """
    encoder = load_encoder(config.tokenizer)
    out, budget = Path(config.out), config.tokens or np.inf
    asked = {"source": source, "tokenizer": encoder.about, "val_tokens": config.val_tokens}
    asked |= {"files": files} if files else {}
    with locked(out):
        begun = {"complete": False, "tokens": 0, "documents": 0, "shards": [], "state": None}
        manifest = read_manifest(out) or {"schema": SCHEMA, **asked, **begun}
        done = manifest["complete"] and (manifest["exhausted"] or manifest["tokens"] >= budget)
        if changed := differences({key: manifest.get(key) for key in asked}, asked):
            raise LabError(f"{out} holds other shards ({'; '.join(changed)}): choose another folder or delete it")
        if done:
            return manifest
        stream = open_stream()
        if manifest["state"] is not None:
            logger.info("%s continues after %d tokens", out, manifest["tokens"])
            stream.load_state_dict(manifest["state"])

        held: list[npt.NDArray[np.uint16]] = []
        documents, state = 0, manifest["state"]  # of what is held: how many, and the stream's position after them
        # A tokenizer makes fewer tokens than characters, so no piece is larger than the smallest part.
        longest = min(config.val_tokens, config.shard_tokens)
        workers = config.workers or os.cpu_count() or 1

        def tokenised(given: tuple[list[str], Any]) -> tuple[npt.NDArray[np.uint16], int, Any]:
            texts, state = given
            return encoder(texts), len(texts), state

        # If the stream breaks off, the pieces that arrived before can still make shards.
        for piece, count, state in read_ahead(tokenised, _read(stream, longest), 2 * workers, workers):
            held.append(piece)
            documents += count
            tokens = sum(map(len, held))
            enough = manifest["tokens"] + tokens >= budget
            if report is not None:
                report(manifest["tokens"] + tokens, manifest["documents"] + documents)
            if enough or tokens >= (config.shard_tokens if manifest["shards"] else config.val_tokens):
                _write(out, manifest, held, documents, state)
                held, documents = [], 0
            if enough and len(manifest["shards"]) > 1:
                break
        if held:
            _write(out, manifest, held, documents, state)
        if len(manifest["shards"]) < 2:
            raise LabError(
                f"{source} has {manifest['tokens']} tokens, and all went into the validation part: lower "
                f"--val_tokens from {config.val_tokens} and delete {out}"
            )
        manifest |= {"exhausted": manifest["tokens"] < budget, "complete": True}
        write_json(out / MANIFEST, manifest)
    return manifest


def _read(stream: Any, longest: int) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield lists of documents, each ended by its 256th document or by `longest` characters, and the position after."""
    texts: list[str] = []
    try:
        for row in stream:
            texts.append(row["text"])
            if len(texts) == _PIECE or sum(map(len, texts)) >= longest:
                yield texts, stream.state_dict()
                texts = []
    except LabError:  # of a file, which no network brings back
        raise
    except Exception as error:
        raise LabError(
            f"the stream of documents broke off ({type(error).__name__}: {error}). Finished shards are kept: the "
            f"same command continues from here. {_INSTEAD}"
        ) from error
    if texts:
        yield texts, stream.state_dict()


def _write(out: Path, manifest: dict[str, Any], pieces: list[Any], documents: int, state: Any) -> None:
    """Write a shard of so many documents, after which the stream is in this state, and add it to the manifest."""
    part = "train" if manifest["shards"] else "val"
    path = out / f"{part}_{len(manifest['shards']):06d}.bin"
    tokens = np.concatenate(pieces)
    write_shard(path, tokens)
    row = {"file": path.name, "part": part, "tokens": len(tokens), "documents": documents, "sha256": sha256(path)}
    manifest["shards"].append(row)
    manifest["tokens"] += len(tokens)
    manifest["documents"] += documents
    manifest |= {"state": state, "complete": False}
    write_json(out / MANIFEST, manifest)
