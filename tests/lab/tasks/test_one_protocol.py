"""The lab's tasks and a user's are objects with the same methods, and the loop cannot tell them apart."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from autowarm.lab.config import RunConfig, ScheduleConfig
from autowarm.lab.tasks import Drawn, Task


class Counted:
    """Tells from which step on its batches were drawn."""

    first: list[int]

    def __init__(self) -> None:
        self.first = []

    def batches(self, seed: int) -> Drawn:
        def after(first: int, rows: slice) -> Iterator[Any]:
            self.first.append(first)
            return ((torch.full((4,), step)[rows],) for step in range(first, 100))

        return Drawn(after)


def test_batches_by_step_are_drawn_from_the_step_that_is_needed_and_in_its_rows() -> None:
    counted = Counted()
    task = Task(counted, RunConfig(steps=9, schedule=ScheduleConfig("linear", 1)), "counted")
    assert [batch[0].tolist() for batch in task.batches(7, slice(2))] == [[7, 7], [8, 8]]
    assert counted.first == [7]


@pytest.mark.parametrize("count", [1, 2])
def test_a_batch_is_split_alike_in_every_part(count: int) -> None:
    task = Task(Counted(), RunConfig(), "counted")
    pieces = task.pieces((torch.arange(4), torch.arange(4.0)), torch.device("cpu"), count, torch.float64)
    assert [len(part) for piece in pieces for part in piece] == [4 // count] * 2 * count
    assert pieces[0][1].dtype == torch.float64
    assert pieces[0][0].dtype == torch.int64
