import math
import re
from collections import Counter

import numpy as np
import pytest

from autowarm.lab.analysis.summary import headline, number, summarise, verdict
from autowarm.lab.analysis.table import cells

from ..helpers import CELL, ROWS, row


def curve(kind: str, length: int, *losses: float | None, **more: str) -> list[dict]:
    """A run with each seed."""
    return [row(kind, length, seed, loss, **more) for seed, loss in enumerate(losses)]


GRID = curve("linear", 2, 2.0, 2.4) + curve("linear", 3, 3.0, 3.4)
BROKEN = curve("linear", 0, None, 2.0) + curve("linear", 1, 2.0, None)


def test_the_best_is_by_mean_and_the_difference_is_paired_over_seeds() -> None:
    (summary,) = summarise(ROWS)
    assert summary.best.warmup_steps == 20  # the run of 40 has a lower loss with one seed, and diverged with the other
    assert summary.best.val_loss == pytest.approx(2.2)
    assert summary.best.stderr == pytest.approx(0.2)
    assert summary.manual[-1].diverged == 1
    assert summary.adaptive.warmup_steps == 12
    assert summary.difference.mean == pytest.approx(0.0)  # +0.1 with one seed, −0.1 with the other
    # Noise of the two lengths and the default, after schedule and seed: 0, ±0.05, ±0.05 over two degrees of freedom.
    assert summary.difference.stderr == pytest.approx(0.1 * math.sqrt(2 / 3))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (GRID + curve("adaptive", 9, None, 2.3),
         "is worse than the best hand-set warm-up (1 of 2 runs of the default diverged)."),
        (BROKEN + curve("adaptive", 5, 9.0, 9.0),
         "The default is better than the best hand-set warm-up (0 of 2 runs of the default diverged). Every hand-set "
         "warm-up diverged with some seed."),
        (BROKEN + curve("adaptive", 5, 9.0, None), "Undecided: "),
        (GRID + curve("adaptive", 9, 2.0, 2.4, ended_by="clock"),
         "In 2 of 2 runs of the default the time limit (max_warmup), not the loss, ended"),
        (curve("linear", 1, 2.1, 2.101) + curve("linear", 5, 2.5, 2.501),
         "The worst, 5 updates, is 0.400 nats higher."),
        (curve("greedy", 0, 1.9), "No hand-set warm-up was run; greedy: loss 1.900."),
        (curve("adaptive", 5, None), "No hand-set warm-up was run; the default: diverged."),
    ],
)  # fmt: skip
def test_the_verdict_says_what_the_numbers_say(rows: list[dict], words: str) -> None:
    assert words in verdict(summarise(rows)[0])


def random_rows(random: np.random.Generator) -> list[dict]:
    """A comparison over two to six seeds; any run may have diverged, failed or been left out."""
    scale, spread, noise = 10.0 ** random.uniform(-6, 3), 10.0 ** random.uniform(-4, 0), 10.0 ** random.uniform(-6, 0)
    lengths = random.choice([0, 5, 10, 20, 40, 80, 99], random.integers(0, 8), replace=False)
    kinds = [("linear", int(length)) for length in lengths] + [("adaptive", 50)] * (random.random() < 0.95)
    offset, sign = random.normal(), random.choice([-1, 1])
    rows = []
    for kind, length in kinds:
        level = random.normal() * spread
        for seed in range(random.integers(1, 7)):
            value = scale * (sign * 2 + offset + level + random.normal() * noise)
            rows.append(row(kind, length, seed, None if random.random() < 0.02 else value))
    return rows


NUMBERS = re.compile(
    r"difference (\S+?)(?: nats)?, 95% interval (\S+) to ([^\s,)]+)(?:\)|, longer below: the best of (\d+) )"
)


def test_every_verdict_is_one_of_three_and_agrees_with_the_numbers_that_are_shown() -> None:
    observed: Counter[str | None] = Counter()
    for case in range(600):
        rows = random_rows(np.random.default_rng(case))
        if not rows:
            continue
        (summary,) = summarise(rows, own=bool(case % 2))
        text, outcome, difference = verdict(summary), summary.outcome, summary.difference
        observed[outcome] += 1
        assert [word for word in ("better", "worse", "undecided") if word in text.lower()] == [outcome] * bool(outcome)
        assert headline([summary]).startswith("One seed decides nothing") == (len(summary.seeds) == 1)
        assert len(summary.seeds) < 2 or (outcome in headline([summary])) == (outcome != "undecided")
        assert len(summary.seeds) != 1 or outcome == "undecided"
        assert ("that was tried" in text) == bool(summary.edge)
        if difference is None or len(difference.values) == 1:
            continue
        actual = NUMBERS.search(text)
        assert actual is not None, text
        mean, low, high = map(float, actual.groups()[:3])
        assert int(actual[4] or 1) == len(summary.manual)
        assert (low, high) == pytest.approx(difference.interval(), rel=0.01, abs=5.1e-5)
        assert low <= mean <= high
        assert len(summary.manual) > 1 or high - mean == pytest.approx(mean - low, rel=0.02, abs=1.1e-4)
        assert ("seeds would decide" in text) == (outcome == "undecided")
        assert outcome == ("better" if high < 0 else "worse" if low > 0 else "undecided")
        assert float(cells(summary)[5].split(" ")[0]) == mean  # the table's
    assert min(observed[outcome] for outcome in ("better", "worse", "undecided", None)) > 20


@pytest.mark.parametrize(
    ("lengths", "best", "edge"),
    [
        ((0, 10, 80), 80, "longest"), ((0, 10, 80), 10, ""), ((0, 10, 80), 0, ""), ((5, 10, 99), 99, ""),
        ((5, 10, 99), 5, "shortest"), ((20,), 20, "longest"), ((0,), 0, "longest"), ((99,), 99, "shortest"),
    ],
)  # fmt: skip
def test_a_best_length_at_the_edge_of_those_tried_is_said_to_be_there(
    lengths: tuple[int, ...], best: int, edge: str
) -> None:
    """Nothing is shorter than none, and in `CELL`, of 100 updates, nothing is longer than 99."""
    rows = [row("linear", length, seed, 2.0 + abs(length - best)) for length in lengths for seed in (0, 1)]
    (summary,) = summarise([*rows, row("adaptive", 9, 0, 2.5), row("adaptive", 9, 1, 2.6)])
    assert summary.edge == edge
    assert (f"It is the {edge} that was tried: the best may be {edge[:-3]}er." in verdict(summary)) == bool(edge)
    assert ("repeat the command with --warmups" in verdict(summary)) == bool(edge)
    (cell,) = summarise([{**one, "cell": {"name": "small", **CELL}} for one in rows])
    assert ("too, add it to the sweep's schedule.warmup_steps" in verdict(cell)) == bool(edge)
    assert ("at the edge of those tried in 1" in headline([summary])) == bool(edge)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([(2.003, 2.399)], "No clear difference from BEST (+0.001 ± 0.001 nats). The worst length was 1.000 higher"),
        ([(2.1, 2.5)], "The default is 0.100 ± 0.000 nats worse than BEST. The worst length was 1.000 higher"),
        ([(1.9, 2.3), (2.2, 2.6), (1.997, 2.401)], "The default against the best length: better in 1, "
         "worse in 1, no clear difference in 1. The worst length was 1.000 higher"),
        ([(None, 2.3)], "The default against the best length: worse in 1. The worst length was 1.000 higher"),
    ],
)  # fmt: skip
def test_the_headline_says_how_far_the_default_is_from_the_best(
    settings: list[tuple[float | None, float | None]], words: str
) -> None:
    rows = []
    for lr, adaptive in enumerate(settings, 1):
        levels = {1: 3, 20: 2, 50: 3}
        runs = [row("linear", length, seed, level + 0.4 * seed) for length, level in levels.items() for seed in (0, 1)]
        runs += [row("adaptive", 9, seed, loss) for seed, loss in enumerate(adaptive)]
        rows += [{**one, "cell": {**CELL, "lr": lr}} for one in runs]
    assert headline(summarise(rows)) == words.replace("BEST", "the best of 3 hand-set lengths")


def test_small_numbers_keep_three_digits_and_the_sign_that_decides() -> None:
    assert [number(x) for x in (2.0, 0.0101, 0.0034567, -1.2345e-6)] == ["2.000", "0.010", "0.00346", "-1.23e-06"]
    assert [number(x, 4, "+") for x in (-0.0, -0.0004, 0.0234)] == ["+0.0000", "-0.0004", "+0.0234"]


def test_schedules_of_other_kinds_stand_beside_the_hand_set_ones() -> None:
    (summary,) = summarise([*ROWS, row("constant", 0, 0, 1.9), row("wsd", 10, 0, 1.5)])
    assert {kind: point.val_loss for kind, point in summary.others.items()} == {"constant": 1.9, "wsd": 1.5}
    assert summary.lowest is summary.others["wsd"]


def test_lengths_are_ranked_on_the_seeds_that_all_of_them_have() -> None:
    """One whose run with a hard seed failed is not the best for that."""
    hard, spared = curve("linear", 0, 4.0, 3.0, 3.0), curve("linear", 40, 3.1, 3.1, 3.1)[1:]
    (summary,) = summarise(hard + spared + curve("adaptive", 9, 4.0, 3.0, 3.0))
    assert summary.best.warmup_steps == 0
    assert "is 0.100 nats higher" in verdict(summary)
    (summary,) = summarise([*hard, *spared, row("linear", 20, 7, None), *curve("linear", 20, 2.9, 2.9, 2.9)[1:]])
    assert summary.best.warmup_steps == 0  # one that diverged is not the best, whichever seed that was


@pytest.mark.parametrize(
    ("lengths", "best", "given"),
    [((0, 10, 40), 40, "80 too, repeat the command with --warmups '[0, 10, 40, 80]'"), ((0, 80), 80, "99 too"),
     ((9, 80), 9, "4 too, repeat the command with --warmups '[4, 9, 80]'"), ((1, 80), 1, "0 too"), ((0,), 0, "5 too")],
)  # fmt: skip
def test_the_verdict_gives_the_command_that_looks_beyond_the_edge(
    lengths: tuple[int, ...], best: int, given: str
) -> None:
    (summary,) = summarise([row("linear", length, 0, 2.0 + abs(length - best)) for length in lengths])
    assert f"To try {given}" in verdict(summary)
