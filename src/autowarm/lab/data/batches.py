"""Batches of tokens as a pure function of (seed, step)."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..config import LabError
from .shards import Tokens

Batch = npt.NDArray[np.int64]
_ALL = slice(None)


def batch(tokens: Tokens, seed: int, step: int, batch_size: int, seq_len: int, rows: slice = _ALL) -> Batch:
    """Return some rows of a step's global batch, shape (rows, seq_len + 1).

    Columns 0 to seq_len − 1 are the inputs, columns 1 to seq_len the targets. A counter-based generator keyed by
    (seed, step) draws the positions, so any process can make any batch at any time.

    Args:
        rows: the rows of the batch that this rank trains on.
    """
    if len(tokens) <= seq_len:
        raise LabError(f"a sequence needs {seq_len + 1} tokens, the corpus part has {len(tokens)}")
    random = np.random.Generator(np.random.Philox(key=np.array([seed, step], dtype=np.uint64)))
    return _windows(tokens, random.integers(0, len(tokens) - seq_len, size=batch_size)[rows], seq_len)


def validation_batches(
    tokens: Tokens, count: int, batch_size: int, seq_len: int, rows: slice = _ALL
) -> Iterator[Batch]:
    """Yield windows spread evenly over the whole validation part, the same for every run and every seed."""
    if len(tokens) <= seq_len:
        raise LabError(f"a sequence needs {seq_len + 1} tokens, the validation part has {len(tokens)}")
    starts = np.linspace(0, len(tokens) - seq_len - 1, num=count * batch_size).astype(np.int64)
    for chunk in np.split(starts, count):
        yield _windows(tokens, chunk[rows], seq_len)


def _windows(tokens: Tokens, starts: npt.NDArray[np.int64], seq_len: int) -> Batch:
    return np.asarray(tokens[starts[:, None] + np.arange(seq_len + 1)], dtype=np.int64)
