import pytest

from autowarm.lab.analysis.summary import headline, summarise, verdict

from ..helpers import CELL, ROWS, row


def test_the_best_is_by_mean_and_a_diverged_run_never_wins() -> None:
    (summary,) = summarise(ROWS)
    assert summary.best is not None
    assert summary.best.warmup_steps == 20
    assert summary.best.val_loss == pytest.approx(2.2)
    assert summary.best.stderr == pytest.approx(0.2)
    assert summary.manual[-1].diverged == 1
    assert summary.adaptive is not None
    assert summary.adaptive.warmup_steps == 12


def test_the_difference_is_paired_over_seeds() -> None:
    (summary,) = summarise(ROWS)
    assert summary.difference is not None
    assert summary.difference.mean == pytest.approx(0.0)  # +0.1 with one seed, −0.1 with the other
    assert summary.difference.stderr == pytest.approx(0.1)


def test_two_seeds_take_students_quantile_and_one_gives_no_verdict() -> None:
    """The 97.5 % quantile of t with one degree of freedom is 12.7062."""
    (summary,) = summarise(ROWS)
    assert summary.difference is not None
    assert summary.difference.interval() == pytest.approx((-1.27062, 1.27062), rel=1e-4)
    (single,) = summarise([one for one in ROWS if one["seed"] == 0])
    assert single.difference is not None
    assert single.difference.interval() is None
    assert "one seed gives no verdict" in verdict(single)
    assert headline([single]).startswith("One seed gives no verdict")


@pytest.mark.parametrize(
    ("adaptive", "words"),
    [
        ((2.01, 2.41), "is no worse than the best hand-set one (+0.010 nats, 95 % interval +0.010 to +0.010)"),
        ((1.9, 2.3), "is better than the best hand-set one (-0.100 nats, 95 % interval -0.100 to -0.100)"),
        ((2.1, 2.5), "is worse than the best hand-set one by more than 0.02 (+0.100 nats"),
        ((2.1, 2.3), "against the best hand-set one is undecided at a margin of 0.02 (+0.000 nats"),
        ((None, 2.3), "Adaptive diverged with 1 of 2 seeds"),
    ],
)
def test_the_verdict_says_what_the_numbers_say(adaptive: tuple[float | None, float], words: str) -> None:
    rows = [*ROWS[:4], row("adaptive", 9, 0, adaptive[0]), row("adaptive", 9, 1, adaptive[1])]
    assert words in verdict(summarise(rows)[0]).replace("-0.000 nats", "+0.000 nats")


def test_the_headline_counts_settings_by_outcome() -> None:
    def setting(lr: float, *adaptive: float | None) -> list[dict]:
        rows = [*ROWS[:4], *(row("adaptive", 9, seed, loss) for seed, loss in enumerate(adaptive))]
        return [{**one, "cell": {**CELL, "lr": lr}} for one in rows]

    rows = [*setting(1, 2.01, 2.41), *setting(2, 2.1, 2.5), *setting(3, None, 2.3), *setting(4, 2.1, 2.3)]
    said = headline(summarise(rows))
    assert said.endswith("by a margin of 0.02 nats, 4 settings: no worse in 1, worse in 2, undecided in 1")


def test_a_warm_up_that_time_ended_is_said_to_be_so() -> None:
    rows = [one if one["schedule"] != "adaptive" else {**one, "ended_by": "clock"} for one in ROWS]
    assert "In 2 of 2 adaptive runs the clock, not the loss, ended the warm-up." in verdict(summarise(rows)[0])
    assert headline(summarise(rows)).endswith("so that here it is a ramp of fixed length")


def test_a_grid_without_differences_is_said_to_show_nothing() -> None:
    flat = [row("linear", warmup, seed, 2.0 + 0.001 * warmup) for warmup in (1, 5) for seed in (0, 1)]
    assert "within 0.004 nats: there is little to choose here" in verdict(summarise(flat)[0])
    noisy = [row("linear", w, seed, 2.0 + 0.01 * w * (1 - 2 * seed) + 0.001 * w) for w in (1, 5) for seed in (0, 1)]
    assert "no more than the noise: this setting shows nothing" in verdict(summarise(noisy)[0])
    clear = [row("linear", w, seed, 2.0 + w / 10 + 0.001 * seed) for w in (1, 5) for seed in (0, 1)]
    assert "nothing" not in verdict(summarise(clear)[0])
    assert "little" not in verdict(summarise(clear)[0])


def test_rates_are_cells_of_their_own() -> None:
    other = [{**r, "cell": {**CELL, "lr": 0.02}} for r in ROWS]
    assert [summary.cell["lr"] for summary in summarise([*ROWS, *other])] == [0.01, 0.02]


def test_schedules_of_other_kinds_stand_beside_the_hand_set_ones() -> None:
    (summary,) = summarise([*ROWS, row("constant", 0, 0, 1.9), row("wsd", 10, 0, 1.5)])
    assert {kind: point.val_loss for kind, point in summary.others.items()} == {"constant": 1.9, "wsd": 1.5}
    assert summary.lowest is summary.others["wsd"]
    (alone,) = summarise([row("greedy", 0, 0, 1.9)])
    assert verdict(alone) == "No hand-set warm-up was run; greedy: loss 1.900."


def test_two_finite_losses_are_never_capped() -> None:
    rows = [row("linear", 5, seed, loss) for seed, loss in enumerate((0.1, 0.11))]
    rows += [row("adaptive", 5, seed, loss) for seed, loss in enumerate((0.5, 0.6))]
    (summary,) = summarise(rows)
    assert summary.difference is not None
    assert summary.difference.mean == pytest.approx(0.445)


def test_losses_below_zero_are_compared_like_others() -> None:
    rows = [row("linear", 5, seed, loss) for seed, loss in enumerate((-3.0, -3.1))]
    rows += [row("adaptive", 5, seed, loss) for seed, loss in enumerate((-2.0, -2.1))]
    (summary,) = summarise(rows, own=True)
    assert summary.difference is not None
    assert summary.difference.mean == pytest.approx(1.0)
    assert "worse" in verdict(summary)


def test_a_diverged_run_alone_is_called_so() -> None:
    (summary,) = summarise([row("adaptive", 5, 0, None)])
    assert verdict(summary) == "No hand-set warm-up was run; adaptive: diverged."
