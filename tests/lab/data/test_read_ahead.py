import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from autowarm.lab.config import LabError
from autowarm.lab.data import training_batches
from autowarm.lab.data.batches import read_ahead
from autowarm.lab.data.shards import Shards, write_shard


def readers() -> int:
    return sum(thread.name.startswith("autowarm-read-ahead") for thread in threading.enumerate())


class Made:
    """Squares, and what called for them."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.threads: set[int] = set()
        self.reached = threading.Condition()

    def __call__(self, step: int) -> int:
        with self.reached:
            self.steps.append(step)
            self.threads.add(threading.get_ident())
            self.reached.notify_all()
        return step * step

    def wait_for(self, count: int) -> None:
        with self.reached:
            assert self.reached.wait_for(lambda: len(self.steps) >= count, timeout=60)


def test_results_come_in_order_from_one_other_thread() -> None:
    made = Made()
    assert list(read_ahead(made, range(3, 40))) == [step * step for step in range(3, 40)]
    assert made.steps == list(range(3, 40))
    assert len(made.threads) == 1
    assert threading.get_ident() not in made.threads
    assert readers() == 0


def test_it_reads_ahead_but_not_without_bound() -> None:
    made = Made()
    results = read_ahead(made, range(100), ahead=4)
    assert made.steps == []  # nothing before the first is wanted
    assert next(results) == 0
    made.wait_for(4)  # without a further call of next
    assert made.steps == [0, 1, 2, 3]
    assert next(results) == 1
    made.wait_for(5)
    assert made.steps == [0, 1, 2, 3, 4]
    results.close()
    assert readers() == 0


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_fewer_steps_than_it_reads_ahead(steps: int) -> None:
    made = Made()
    assert len(list(read_ahead(made, range(5, 5 + steps), ahead=3))) == steps
    assert made.steps == list(range(5, 5 + steps))  # none beyond the last
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


def test_a_dropped_iterator_ends_its_thread() -> None:
    results = read_ahead(lambda step: step, range(1000))
    next(results)
    assert readers() == 1
    del results
    assert readers() == 0


def test_batches_are_pinned_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.arange(100, dtype=np.uint16)
    assert not any(b.is_pinned() for b in training_batches(tokens, 0, 0, 2, 2, 4)) or torch.cuda.is_available()
    pinned: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: (pinned.append(threading.get_ident()), self)[1])
    assert len(list(training_batches(tokens, 0, 0, 5, 2, 4))) == 5
    assert len(pinned) == 5
    assert threading.get_ident() not in pinned  # a copy, so it is the thread's work


def test_a_damaged_shards_error_reaches_the_training_loop(tmp_path: Path) -> None:
    paths = [tmp_path / f"train_{i}.bin" for i in range(3)]
    for i, path in enumerate(paths):
        write_shard(path, np.full(50, 60000 if i == 1 else 7, dtype=np.uint16))
    batches = training_batches(Shards(paths, 50304), 0, 0, 1000, 2, 4)
    with pytest.raises(LabError, match=r"train_1\.bin holds the token 60000"):
        list(batches)
    assert readers() == 0
