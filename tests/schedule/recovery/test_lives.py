"""Lives drawn at random, with `recover=True` and with `SpikeGuard`; `lives` says what holds."""

import pytest

from .lives import judged

FAULTS = {
    "the run went back again and again to a copy that other data had made worthless": 133,
    "a burst left a copy from before the run had learnt anything, which alarm after alarm restored": 80,
    "bad batches came as the data changed, and the trial was begun ten times": 36,
    "the first loss on trial is far above the first level": 88,
    "two losses after a restart were too few for a level": 134,
    "vetoed updates hid that weights were not finite": 148,
    "a group joined before a step that came before the update": 23,
    "two losses that were not finite, with finite ones between, threw a healthy run back": 548,
    "with nothing left to lower, weights that were not finite stayed": 739,
    "a run ended on trial, of which nothing had been said": 19,
}


@pytest.mark.parametrize("number", FAULTS.values(), ids=FAULTS)
def test_lives_in_which_something_was_wrong(number: int) -> None:
    assert judged(number) == ""


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_lives_drawn_at_random(first: int) -> None:
    for number in range(first, first + 10):
        assert judged(number) == ""
