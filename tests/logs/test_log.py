"""Logs put in order: resumed, sparse, broken, begun late."""

import contextlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autowarm.logs.log import LogError, make_log

BEFORE = "the log starts over at step {}: the {} losses before are left out"
RESUMED = "the run resumed at step {}: the later losses count"
# Steps, with losses that count the rows; the updates, the rows that count, and what is said first.
ORDERS: dict[str, tuple[list[int], list[int], list[int], list[str]]] = {
    "from 0": ([0, 1, 2, 3], [1, 2, 3, 4], [0, 1, 2, 3], []),
    "from 1": ([1, 2, 3, 4], [1, 2, 3, 4], [0, 1, 2, 3], []),
    "every fifth, from step 4": ([4, 9, 14], [1, 5, 10, 15], [0, 0, 1, 2], []),
    "every fifth, from step 5": ([5, 10, 15], [1, 5, 10, 15], [0, 0, 1, 2], []),
    # The crash came after step 30, the run resumed from 15, and then logged at other steps.
    "resumed": ([1, 10, 20, 30, 15, 25, 35], [1, 10, 15, 25, 35], [0, 1, 4, 5, 6], [RESUMED.format(15)]),
    "begun again": ([*range(1, 51), *range(1, 4)], [1, 2, 3], [50, 51, 52], [BEFORE.format(1, 50)]),
    "begun again, and resumed": (
        [50, 10, 20, 30, 15, 25], [1, 10, 15, 25], [1, 1, 4, 5], [BEFORE.format(10, 1), RESUMED.format(15)],
    ),
    "begun again, and resumed later": (
        [*range(5), *range(20), 15, 16], [*range(1, 18)], [*range(5, 20), 25, 26],
        [BEFORE.format(0, 5), RESUMED.format(15)],
    ),
    "a first try that crashed early": ([*range(30), *range(100)], [*range(1, 101)], [*range(30, 130)], []),
    "again and again": (
        [1, 1, 2, 2, 3, 3], [1, 2, 3], [1, 3, 5], ["3 losses are of a step that comes again: the last one counts"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "updates", "rows", "notes"), ORDERS.values(), ids=ORDERS)
def test_rows_are_put_in_order(steps: list[int], updates: list[int], rows: list[int], notes: list[str]) -> None:
    log = make_log("a", steps, np.arange(1.0, len(steps) + 1))
    assert log.updates.tolist() == updates
    assert log.losses.tolist() == [1.0 + row for row in rows]
    assert list(log.notes[: len(notes)]) == notes


def test_steps_that_begin_again_after_equal_stretches_are_no_resume() -> None:
    for steps in ([*range(100)] * 4, [*range(100)] * 2 + [*range(40)], [*range(10, 101, 10)] * 2, [*range(5)] * 9):
        with pytest.raises(LogError, match="the steps begin again, .* times: pass steps that count"):
            make_log("a", steps, np.ones(len(steps)))


@given(st.lists(st.integers(1, 60), min_size=2, max_size=40).filter(lambda steps: len(set(steps)) > 1))
def test_updates_always_rise_and_the_last_row_is_always_kept(steps: list[int]) -> None:
    steps = [*steps, 2] if steps[-1] == 1 else steps
    with contextlib.suppress(LogError):  # only one loss was left
        log = make_log("a", steps, np.arange(len(steps), dtype=float), first_loss=0.0)
        assert (np.diff(log.updates) > 0).all()
        assert log.updates[0] == 1
        assert len(steps) - 1 in log.losses


def test_means_stand_in_the_middle_of_their_updates_and_one_update_scatters_more() -> None:
    losses = np.random.default_rng(0).standard_normal(4000)
    mean = make_log("a", np.arange(10, 40_001, 10), losses, averaged=True)
    assert mean.updates[:4].tolist() == [1, 5, 15, 25]
    assert mean.noise.mean() == pytest.approx(math.sqrt(10), rel=0.1)
    single = make_log("a", np.arange(10, 40_001, 10), losses)
    assert single.noise.mean() == pytest.approx(1.0, rel=0.1)
    assert make_log("a", range(1, 11), range(10), averaged=True).updates.tolist() == list(range(1, 11))


def test_the_noise_is_that_of_the_losses_nearby_and_not_of_the_trend() -> None:
    sizes = np.where(np.arange(400) < 200, 0.01, 1.0)
    losses = 9.0 - np.arange(400) / 50 + sizes * np.random.default_rng(0).standard_normal(400)
    noise = make_log("a", range(1, 401), losses).noise
    assert noise.shape == (400,)
    assert np.median(noise[:180]) == pytest.approx(0.01, rel=0.3)
    assert np.median(noise[220:]) == pytest.approx(1.0, rel=0.3)
    assert make_log("a", [1, 2, 3], [3.0, 2.0, 1.0]).noise.tolist() == [0.0, 0.0, 0.0]
    assert len(make_log("a", range(1, 11), [*range(9), math.nan]).noise) == 9


def test_losses_that_are_not_finite_stay_in_a_whole_log_and_leave_a_sparse_one() -> None:
    whole = make_log("a", [1, 2, 3, 4], [3.0, math.nan, math.inf, 1.0])
    assert np.isfinite(whole.losses).tolist() == [True, False, False, True]
    sparse = make_log("a", [1, 11, 21, 31], [3.0, math.nan, 2.0, 1.0])
    assert sparse.updates.tolist() == [1, 21, 31]
    assert any("1 losses that are not finite are left out" in note for note in sparse.notes)


def test_where_most_losses_are_nan_they_mark_steps_without_one() -> None:
    losses = [float(step) if step % 5 == 1 else math.nan for step in range(1, 32)]
    assert make_log("a", range(1, 32), losses).updates.tolist() == list(range(1, 32, 5))


def test_rates_have_steps_of_their_own_and_are_known_at_every_update() -> None:
    log = make_log("a", [1, 2, 3, 4, 5], np.ones(5), [2, 4], [0.2, 0.4])
    assert log.rates is not None
    assert log.rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert (log.used_warmup, log.used_at_most) == (4, False)
    assert log.notes == (
        "a rate every 2 updates: in between it is taken on a line",
        "the first rate is logged at update 2: earlier ones are taken on the line of their rise",
    )
    assert make_log("a", [1, 2], [2.0, 1.0], [1, 2], [1.0, 0.5]).used_warmup == 0
    zero = make_log("a", [1, 2], [2.0, 1.0], [1, 2], [0.0, 0.0])
    assert zero.rates is None
    assert "not positive" in zero.notes[0]


@pytest.mark.parametrize(
    ("steps", "rates", "used", "note"),
    [
        ([500, 1000], [1.0, 0.9], (500, True), "at update 500, and none is logged before"),
        ([500, 1000], [1.0, 1.0], (500, True), "at update 500, and none is logged before"),
        ([1, 1001, 2001], [0.1, 1.0, 1.0], (1001, True), "at update 1,001, and none is logged after update 1"),
        ([0, 500, 1000], [0.0, 1.0, 0.9], (500, True), "at update 500, and none is logged after update 0"),
        ([100, 200, 1000, 1100], [0.1, 0.2, 1.0, 1.0], (1000, True), "none is logged after update 200"),
        ([900, 1000, 1100], [0.9, 1.0, 1.0], (1000, False), None),
        ([1, 11, 21], [0.1, 1.0, 1.0], (11, False), None),
        ([0, 1000], [1.0, 0.5], (0, False), None),
        ([1, 1000], [1.0, 0.5], (0, False), None),
    ],
)
def test_a_warm_up_that_ends_where_no_rate_is_logged_is_only_bounded(
    steps: list[int], rates: list[float], used: tuple[int, bool], note: str | None
) -> None:
    log = make_log("a", range(1, 2001), np.ones(2000), steps, rates)
    assert (log.used_warmup, log.used_at_most) == used
    assert any("it may have peaked before" in text for text in log.notes) == used[1]
    assert note is None or note in log.notes[-1]


def test_rates_before_the_first_one_logged_go_down_on_the_line_of_the_rise_but_not_below_0() -> None:
    def first(steps: list[int], rates: list[float]) -> list[float]:
        log = make_log("a", range(1, 9), np.ones(8), steps, rates)
        assert log.rates is not None
        return log.rates[:4].tolist()

    assert first([4, 6, 8], [4.0, 6.0, 8.0]) == [1.0, 2.0, 3.0, 4.0]
    assert first([4, 6, 8], [2.0, 4.0, 4.0]) == [0.0, 0.0, 1.0, 2.0]
    assert first([4, 6, 8], [4.0, 3.0, 5.0]) == [4.0, 4.0, 4.0, 4.0]
    assert first([4], [4.0]) == [4.0, 4.0, 4.0, 4.0]
    assert first([9, 10], [9.0, 10.0]) == [1.0, 2.0, 3.0, 4.0]
    falling = make_log("a", range(1, 9), np.ones(8), [4, 5, 6, 7, 8], np.ones(5))
    assert falling.notes[0] == "the first rate is logged at update 4: earlier ones are taken as the same"


@pytest.mark.parametrize(
    ("steps", "losses", "options", "message"),
    [
        ([], [], {}, "no losses"),
        ([1, 2], [math.nan, 1.0], {}, "1 finite losses, and a curve needs at least 2"),
        ([1, 2.5], [2.0, 1.0], {}, "whole numbers from 0, got 2.5: choose what counts updates"),
        ([-1, 2], [2.0, 1.0], {}, "whole numbers from 0, got -1"),
        ([1, 10**9], [2.0, 1.0], {}, "1,000,000,000, which counts samples or tokens rather than updates"),
        ([5, 6], [2.0, 1.0], {"first_loss": math.nan}, "first_loss must be a finite number, got nan"),
        ([1, 6], [2.0, 1.0], {"first_loss": math.inf}, "first_loss must be a finite number, got inf"),
        ([1, 5], [2.0, 1.0], {"total_steps": 3}, "total_steps=3, but the log goes to update 5"),
        ([1, 5], [2.0, 1.0], {"total_steps": 9.5}, "total_steps must be a whole number, got 9.5"),
    ],
)
def test_what_is_no_curve_is_refused_in_words(steps: list, losses: list, options: dict, message: str) -> None:
    with pytest.raises(LogError, match=message):
        make_log("a", steps, losses, **options)
