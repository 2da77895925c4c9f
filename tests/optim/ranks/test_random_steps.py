"""Two thousand steps, drawn at random: optimizer × dtype × autocast × layout × ranks × what is wrong with a gradient.

Each is that of the plain code, within what its dtype rounds, or an error on every rank that leaves the weights as they
were. Nothing is different in silence.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.optim.ranks.random_step_ranks import MAKERS
from tests.programs import Launcher, rank_environment

CASES, BATCH, FEW = 2000, 475, 100
# The errors that are right, by a part of their text.
REFUSED = ["ranks have different gradients", "sharded over several mesh dimensions"]


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (0, FEW),
        (1208, 1209),  # whose redistributed gradients have another memory layout than the weights
        *(
            pytest.param(n, n + BATCH, marks=[pytest.mark.long, pytest.mark.generated])
            for n in range(FEW, CASES, BATCH)
        ),
    ],
)
def test_steps_drawn_at_random(first: int, last: int, rank_launcher: Launcher, tmp_path: Path) -> None:
    ended = rank_launcher.run_together(
        [Path(__file__).parent / "random_step_ranks.py", tmp_path, str(first), str(last)],
        [rank_environment(rank, 2, port=0) for rank in (0, 1)],
    )
    assert [one.status for one in ended] == [0, 0], "".join(one.stderr for one in ended)
    ranks: list[list[dict[str, Any]]] = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    right: Counter[str] = Counter()
    wrong = []
    for pair in zip(*ranks, strict=True):
        errors = [one["error"] for one in pair]
        if any(errors) and not (all(errors) or not pair[0]["together"]):
            wrong.append(f"one rank alone raised {errors}: {pair[0]['case']}")
        for one in pair:
            if one["error"] is None and not one["worst"] <= one["allowed"]:
                wrong.append(f"off by {one['worst']:.2g}: {one['case']}")
            elif one["error"] is None:
                right[one["name"]] += 1
            elif one["moved"] or not any(text in one["error"] for text in REFUSED):
                wrong.append(f"{one['error']}, {'after a move' if one['moved'] else 'before any'}: {one['case']}")
    assert not wrong, f"{len(wrong)} wrong: " + "\n".join(wrong[:20])
    if last - first >= FEW:
        assert set(right) == set(MAKERS)
    assert sum(right.values()) > 0.8 * 2 * (last - first)
