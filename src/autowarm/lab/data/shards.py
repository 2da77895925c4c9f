"""Token shards: a folder of files, each a header of 256 int32 (magic number, version, count) and then uint16 tokens.

This is the format of kjj0/fineweb10B-gpt2. Files with "val" in their name hold the validation part, files with "train"
the training part; `examples/make_shards.py` makes a folder of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..config import LabError
from ..files import sha256, write_atomically

_PARTS = ("train", "val")
_MAGIC, _VERSION, _HEADER = 20240520, 1, 256


class Shards:
    """Files in order as one long sequence of tokens below `vocabulary`. Only what is looked up is read from disk."""

    def __init__(self, paths: Sequence[Path], vocabulary: int = 2**16) -> None:
        self._paths, self._vocabulary = paths, vocabulary
        # As plain arrays over the memory maps: a slice of an np.memmap costs ten times as much.
        self._parts = [open_shard(path).view(np.ndarray) for path in paths]
        self._bounds = np.cumsum([0, *(len(part) for part in self._parts)])

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def windows(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.uint16]:
        """Return the ``length`` tokens from each start, shape (starts, length). A window may run across shards."""
        windows = np.empty((len(starts), length), dtype=np.uint16)
        for row in np.argsort(starts).tolist():  # so that the disk is read in one direction
            window, shard = windows[row], self._shard_of(starts[row])
            place = int(starts[row] - self._bounds[shard])
            while len(window):
                part = self._parts[shard][place : place + len(window)]
                window[: len(part)] = part
                window, shard, place = window[len(part) :], shard + 1, 0
        if windows.size and windows.max() >= self._vocabulary:  # an embedding would read beyond its end
            row, column = np.argwhere(windows >= self._vocabulary)[0]
            path = self._paths[self._shard_of(starts[row] + column)]
            raise LabError(f"{path} holds the token {windows[row, column]} and its vocabulary ends at "
                           f"{self._vocabulary - 1}: is it damaged, or model.vocab_size too small?")  # fmt: skip
        return windows

    def _shard_of(self, place: int) -> int:
        return int(np.searchsorted(self._bounds, place, side="right")) - 1


Tokens: TypeAlias = npt.NDArray[np.uint16] | Shards


@dataclass(frozen=True)
class Corpus:
    """The tokens of a training and a validation part. The parts share no document."""

    name: str
    sha256: str  # of the tokens in both parts; for shards, of their names, sizes and ends
    train: Tokens
    val: Tokens

    @property
    def tokens(self) -> int:
        return len(self.train) + len(self.val)


def write_shard(path: Path, tokens: npt.NDArray[np.uint16]) -> None:
    """Write one shard atomically: an interrupted call leaves no partial file."""
    header = np.zeros(_HEADER, dtype="<i4")
    header[:3] = _MAGIC, _VERSION, len(tokens)
    write_atomically(path, header.tobytes() + tokens.astype("<u2").tobytes())


def open_shard(path: Path) -> npt.NDArray[np.uint16]:
    """Map a shard's tokens into memory; LabError if the file is no shard, or not as long as its header says."""
    header = np.fromfile(path, dtype="<i4", count=_HEADER)
    if len(header) < _HEADER or header[0] != _MAGIC or header[1] != _VERSION:
        raise LabError(f"{path} is no token shard: it must start with {_MAGIC} and {_VERSION}, got {header[:2]}")
    count = (path.stat().st_size - header.nbytes) / 2
    if count != header[2]:  # `count` is fractional if half a token is missing
        raise LabError(f"{path} is damaged: its header says {header[2]} tokens, it holds {count:g}: make it again")
    return np.memmap(path, dtype="<u2", mode="r", offset=header.nbytes)


def is_sharded(folder: Path) -> bool:
    return any(folder.glob("*.bin"))


def read_shards(folder: Path, vocab_size: int) -> Corpus:
    """Read a folder of shards as a corpus; LabError if a file is damaged, or a part is missing."""
    paths = {part: sorted(folder.glob(f"*{part}*.bin")) for part in _PARTS}
    for part in _PARTS:
        if not paths[part]:
            raise LabError(f"{folder} has no shard with {part!r} in its name: both parts are needed, train and val")
    identity = b""
    for path in (*paths["train"], *paths["val"]):  # a shard's name, size and ends, for it is not read at every start
        size = path.stat().st_size
        with open(path, "rb") as file:
            identity += f"{path.name} {size}\0".encode() + file.read(4096)
            file.seek(max(0, size - 4096))
            identity += file.read()
    return Corpus(folder.resolve().name, sha256(identity), *(Shards(paths[part], vocab_size) for part in _PARTS))
