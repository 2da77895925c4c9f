import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autowarm.lab.config import LabError
from autowarm.lab.data import batch, training_batches, validation_batches
from autowarm.lab.data.batches import Sampling, read_ahead
from autowarm.lab.data.shards import Shards, write_shard

lengths = st.lists(st.integers(0, 60), min_size=1, max_size=8)  # of shards


def cut(tokens: npt.NDArray[np.uint16], sizes: list[int], folder: str) -> Shards:
    """The tokens as shards of these sizes."""
    paths = [Path(folder) / f"train_{i}.bin" for i in range(len(sizes))]
    for path, part in zip(paths, np.split(tokens, np.cumsum(sizes)[:-1]), strict=True):
        write_shard(path, part)
    return Shards(paths)


def plain(tokens: npt.NDArray[np.uint16], seed: int, step: int, batch_size: int, seq_len: int) -> npt.NDArray[np.int64]:
    """A random batch, one token at a time: what stored results were trained on."""
    random = np.random.Generator(np.random.Philox(key=np.array([seed, step], dtype=np.uint64)))
    starts = random.integers(0, len(tokens) - seq_len, size=batch_size)
    return np.array([[tokens[start + i] for i in range(seq_len + 1)] for start in starts], dtype=np.int64)


def test_validation_covers_the_whole_part_evenly_and_always_alike() -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    batches = list(validation_batches(tokens, count=3, batch_size=5, seq_len=9))
    assert [b.shape for b in batches] == [(5, 10)] * 3
    assert batches[0][0, 0] == 0
    assert batches[-1][-1, -1] == 999


def test_too_short_a_part_says_how_short() -> None:
    with pytest.raises(LabError, match="needs 9 tokens, the corpus part has 5"):
        batch(np.zeros(5, dtype=np.uint16), 0, 0, 1, 8)
    with pytest.raises(LabError, match="needs 9 tokens, the validation part has 8"):
        next(validation_batches(np.zeros(8, dtype=np.uint16), 1, 1, 8))


@settings(max_examples=50)
@given(
    sizes=lengths, seed=st.integers(0, 2**40), step=st.integers(0, 2**30), rows=st.integers(1, 9),
    seq_len=st.integers(1, 70),
)  # fmt: skip
def test_batches_from_shards_are_those_of_one_sequence(
    sizes: list[int], seed: int, step: int, rows: int, seq_len: int
) -> None:
    tokens = np.random.default_rng(0).integers(0, 2**16, size=sum(sizes)).astype(np.uint16)
    if len(tokens) <= seq_len:
        return
    with TemporaryDirectory() as folder:
        shards = cut(tokens, sizes, folder)
        expected = plain(tokens, seed, step, rows, seq_len)
        assert np.array_equal(batch(shards, seed, step, rows, seq_len), expected)
        assert np.array_equal(batch(tokens, seed, step, rows, seq_len), expected)
        epoch = batch(shards, seed, step, rows, seq_len, sampling="epochs")
        assert np.array_equal(batch(tokens, seed, step, rows, seq_len, sampling="epochs"), epoch)
        assert np.array_equal(shards.windows(np.arange(len(tokens)), 1)[:, 0], tokens)
        assert np.array_equal(shards.windows(np.array([0]), len(tokens))[0], tokens)


@settings(max_examples=50)
@given(
    count=st.integers(1, 40), tail=st.integers(0, 4), rows=st.integers(1, 50), seed=st.integers(0, 2**40),
    epochs=st.integers(1, 3),
)  # fmt: skip
def test_every_epoch_visits_every_sequence_once(count: int, tail: int, rows: int, seed: int, epochs: int) -> None:
    tokens = np.arange(5 * count + 1 + tail, dtype=np.uint16)
    steps = -(-epochs * count // rows)
    drawn = np.concatenate([batch(tokens, seed, step, rows, 5, sampling="epochs") for step in range(steps)])
    assert np.all(np.diff(drawn) == 1)
    for epoch in range(epochs):
        first = drawn[epoch * count : (epoch + 1) * count, 0]
        assert sorted(first) == list(range(0, 5 * count, 5))


@pytest.mark.parametrize("sampling", ["random", "epochs"])
def test_a_resumed_run_reads_the_same_batches(sampling: Sampling) -> None:
    tokens = np.arange(997, dtype=np.uint16)
    whole = list(training_batches(tokens, 5, 0, 30, 8, 16, slice(2, 6), sampling))
    resumed = list(training_batches(tokens, 5, 17, 30, 8, 16, slice(2, 6), sampling))
    assert [b.shape for b in whole] == [(4, 17)] * 30
    assert all(np.array_equal(a, b) for a, b in zip(whole[17:], resumed, strict=True))
    alone = batch(tokens, 5, 29, 8, 16, sampling=sampling)
    assert np.array_equal(resumed[-1], alone[2:6])


def test_the_whole_validation_part_is_seen_once_in_batches_that_do_not_overlap() -> None:
    tokens = np.arange(103, dtype=np.uint16)
    actual = list(validation_batches(tokens, None, batch_size=4, seq_len=8))
    assert len(actual) == 3  # 12 windows of 8 and one more target fit into 103 tokens
    inputs = np.concatenate([windows[:, :-1].ravel() for windows in actual])
    assert np.array_equal(inputs, np.arange(96))
    with pytest.raises(LabError, match="set whole_validation to false"):
        list(validation_batches(tokens, None, batch_size=16, seq_len=8))


def readers() -> int:
    return sum(thread.name.startswith("autowarm-read-ahead") for thread in threading.enumerate())


def test_results_come_in_order_from_one_other_thread_that_reads_ahead_but_not_without_bound() -> None:
    calls: list[tuple[int, int]] = []
    called = threading.Condition()

    def square(step: int) -> int:
        with called:
            calls.append((step, threading.get_ident()))
            called.notify_all()
        return step * step

    results = read_ahead(square, range(3, 40), ahead=4)
    assert calls == []  # nothing before the first is wanted
    assert next(results) == 9
    with called:
        assert called.wait_for(lambda: len(calls) >= 4, timeout=60)  # without a further call of next
    assert [step for step, _ in calls] == [3, 4, 5, 6]
    assert list(results) == [step * step for step in range(4, 40)]
    assert [step for step, _ in calls] == list(range(3, 40))
    assert len({thread for _, thread in calls} - {threading.get_ident()}) == 1
    assert readers() == 0


def test_an_error_comes_in_its_turn_and_ends_the_thread() -> None:
    def make(step: int) -> int:
        if step == 3:
            raise LabError("the third is damaged")
        return step

    results = read_ahead(make, range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(LabError, match="the third is damaged"):
        next(results)
    assert readers() == 0
    assert next(results, None) is None
