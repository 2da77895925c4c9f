"""``peak="auto"`` where a batch fails, for want of memory or otherwise, and is tried again."""

import itertools

import pytest
import torch

from autowarm import AdaptiveWarmup
from tests.schedule.search.search_runs import MAKERS, STEPS, Run, loss_of

# Where a batch fails, and whether its loss had been observed. To the schedule, in the forward pass is no other place.
PLACES = [
    ("backward", False),
    *itertools.product(["inside the step", "between the steps"], [False, True]),
]


class Failure(RuntimeError):
    """As `torch.OutOfMemoryError`, whose name depends on the device."""


def fail(*_: object) -> None:
    raise Failure


def attempt(run: Run, x: torch.Tensor, place: str | None, order: str, observed: bool) -> None:
    """A batch, which fails at this place."""
    loss = loss_of(run.model, x)
    loss.backward()
    if place == "backward":
        fail()
    if observed:
        run.scheduler.observe(loss.detach())
    given = None if observed else loss.detach()
    if order == "before":
        run.scheduler.step(given)
    handle = run.optimizer.register_step_pre_hook(fail) if place == "inside the step" else None
    try:
        run.optimizer.step()
    finally:
        if handle is not None:
            handle.remove()
    if place == "between the steps":
        fail()
    if order == "after":
        run.scheduler.step(given)


@pytest.mark.parametrize("make", [MAKERS[name] for name in ("muon", "muon, tensor lr", "adamw", "together")])
@pytest.mark.parametrize("order", ["after", "before"])
def test_a_batch_that_is_tried_again_leaves_the_search_right(make, order: str) -> None:
    expected = float(Run(make).search().scheduler.base_lrs[0])
    for (place, observed), at in itertools.product(PLACES, (0, 1, 12)):
        run = Run(make)
        first, batches = run.weights(), 0
        while run.scheduler.phase == "search":
            x = next(run.data)
            for failing in (place, None) if batches == at else (None,):
                try:
                    attempt(run, x, failing, order, observed)
                except Failure:
                    assert failing
                run.optimizer.zero_grad()
            batches += 1
            assert batches <= 31
        where = f"{place} of batch {at}, {'observed' if observed else 'given'}"
        assert expected / 1.5 < float(run.scheduler.base_lrs[0]) < expected * 1.5, where
        if order == "after":  # before, one more update is made
            assert all(torch.equal(a, b) for a, b in zip(run.weights(), first, strict=True)), where


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_run_that_begins_again_needs_a_new_optimizer_if_this_one_has_made_updates(make) -> None:
    run, expected = Run(make), Run(make).search().scheduler.base_lrs
    run.scheduler = AdaptiveWarmup(
        run.optimizer, STEPS, peak="auto"
    )  # the first attempt failed before its first update
    assert run.search().scheduler.base_lrs == expected
    run = Run(make).train(10)
    run.scheduler = AdaptiveWarmup(run.optimizer, STEPS, peak="auto")
    with pytest.raises(ValueError, match="needs an optimizer that has made no update"):
        run.train(1)
