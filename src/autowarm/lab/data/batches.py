"""Batches of tokens as a pure function of (seed, step), read ahead of their use."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..config import LabError
from .shards import Shards, Tokens

Batch = npt.NDArray[np.int64]
Sampling = Literal["random", "epochs"]
T = TypeVar("T")
_ALL = slice(None)
_AHEAD = 3  # batches: enough for a slow read now and then, and a few MB


def batch(
    tokens: Tokens, seed: int, step: int, batch_size: int, seq_len: int, rows: slice = _ALL,
    sampling: Sampling = "random",
) -> Batch:  # fmt: skip
    """Return some rows of a step's global batch, shape (rows, seq_len + 1): inputs, and one more for the targets.

    Args:
        rows: the rows of the batch that this rank trains on.
        sampling: "random" draws windows that begin at any token, by a counter-based generator keyed by (seed, step).
            "epochs" cuts the tokens into (tokens − 1) // seq_len windows and takes each once in every epoch, in the
            order of a permutation keyed by (seed, epoch); a last piece shorter than seq_len is never seen.
    """
    if len(tokens) <= seq_len:
        raise LabError(f"a sequence needs {seq_len + 1} tokens, the corpus part has {len(tokens)}")
    if sampling == "random":
        random = np.random.Generator(np.random.Philox(key=np.array([seed, step], dtype=np.uint64)))
        starts = random.integers(0, len(tokens) - seq_len, size=batch_size)[rows]
    else:
        count = (len(tokens) - 1) // seq_len
        epochs, offsets = np.divmod(np.arange(step * batch_size, (step + 1) * batch_size)[rows], count)
        starts = np.empty(len(epochs), dtype=np.int64)
        for epoch in np.unique(epochs).tolist():
            in_epoch = epochs == epoch
            starts[in_epoch] = permutation(count, seed, epoch)[offsets[in_epoch]]
        starts *= seq_len
    return _windows(tokens, starts, seq_len)


def training_batches(
    tokens: Tokens, seed: int, first: int, last: int, batch_size: int, seq_len: int, rows: slice = _ALL,
    sampling: Sampling = "random",
) -> Iterator[Tensor]:  # fmt: skip
    """Yield `batch` of steps first to last − 1 as tensors, read ahead; in pinned memory if there is a GPU."""
    pinned = torch.cuda.is_available()  # from where a copy to the GPU can overlap with computation

    def make(step: int) -> Tensor:
        windows = torch.from_numpy(batch(tokens, seed, step, batch_size, seq_len, rows, sampling))
        return windows.pin_memory() if pinned else windows

    return read_ahead(make, range(first, last))


def read_ahead(make: Callable[[int], T], steps: Iterable[int], ahead: int = _AHEAD) -> Iterator[T]:
    """Yield make(step) for each step. A thread calls it, at most ``ahead`` calls in advance, and ends with the loop.

    An exception of a call is raised in its turn, after the results before it.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="autowarm-read-ahead")
    waiting: deque[Future[T]] = deque()
    try:
        for step in steps:
            waiting.append(pool.submit(make, step))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def validation_batches(
    tokens: Tokens, count: int | None, batch_size: int, seq_len: int, rows: slice = _ALL
) -> Iterator[Batch]:
    """Yield `count` batches spread evenly over the whole validation part, the same for every run and every seed.

    None takes every window once, one after the other; a last batch that is not full is left out.
    """
    if len(tokens) <= seq_len:
        raise LabError(f"a sequence needs {seq_len + 1} tokens, the validation part has {len(tokens)}")
    for starts in validation_places(len(tokens) - seq_len, count, batch_size, seq_len):
        yield _windows(tokens, starts[rows], seq_len)


def validation_places(places: int, count: int | None, batch_size: int, apart: int = 1) -> list[npt.NDArray[np.int64]]:
    """Return `count` batches of places, spread evenly from 0 to places − 1; None takes every ``apart``-th once."""
    if count is not None:
        return np.split(np.linspace(0, places - 1, num=count * batch_size).astype(np.int64), count)
    samples = np.arange(0, places, apart)
    if not (count := len(samples) // batch_size):
        raise LabError(f"the validation part has {len(samples)} samples, fewer than a batch of {batch_size}: set "
                       "whole_validation to false")  # fmt: skip
    return np.split(samples[: count * batch_size], count)


@lru_cache(maxsize=2)
def permutation(count: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the order of an epoch over ``count`` samples."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64))).permutation(count)


def _windows(tokens: Tokens, starts: npt.NDArray[np.int64], seq_len: int) -> Batch:
    length = seq_len + 1
    if isinstance(tokens, Shards):
        return tokens.windows(starts, length).astype(np.int64)
    return np.lib.stride_tricks.sliding_window_view(tokens, length)[starts].astype(np.int64)
