import numpy as np
import pytest

from autowarm.lab.config import LabError
from autowarm.lab.data import batch, validation_batches


def test_a_batch_is_a_pure_function_of_seed_and_step() -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    first = batch(tokens, seed=3, step=7, batch_size=4, seq_len=8)
    batch(tokens, seed=3, step=8, batch_size=4, seq_len=8)
    assert np.array_equal(first, batch(tokens, seed=3, step=7, batch_size=4, seq_len=8))
    assert not np.array_equal(first, batch(tokens, seed=3, step=8, batch_size=4, seq_len=8))
    assert not np.array_equal(first, batch(tokens, seed=4, step=7, batch_size=4, seq_len=8))
    assert first.shape == (4, 9)
    assert (np.diff(first) == 1).all()  # each row is one stretch of text


def test_every_token_can_be_drawn() -> None:
    tokens = np.arange(10, dtype=np.uint16)
    drawn = {int(t) for step in range(200) for t in batch(tokens, 0, step, 2, 4).ravel()}
    assert drawn == set(range(10))


def test_validation_covers_the_whole_part_evenly_and_always_alike() -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    batches = list(validation_batches(tokens, count=3, batch_size=5, seq_len=9))
    assert [b.shape for b in batches] == [(5, 10)] * 3
    assert batches[0][0, 0] == 0
    assert batches[-1][-1, -1] == 999


def test_too_short_a_part_says_how_short() -> None:
    with pytest.raises(LabError, match="needs 9 tokens, the corpus part has 5"):
        batch(np.zeros(5, dtype=np.uint16), 0, 0, 1, 8)
