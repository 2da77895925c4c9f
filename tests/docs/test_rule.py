"""The rule that a page states in a few lines is the rule of `AdaptiveWarmup`."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from autowarm import AdaptiveWarmup
from tests.docs.test_pages import fences

ROOT = Path(__file__).parents[2]


def curve(draw: random.Random, updates: int) -> list[float]:
    """Positive losses that fall, level off and spike."""
    first, last = draw.uniform(0.5, 12.0), draw.choice((0.05, 0.2, 0.5, 1.1))
    fall, noise = draw.uniform(0.02, 0.4) * updates, draw.uniform(0.0, 0.1)
    losses = [
        first * (last + (1 - last) * 2 ** (-t / fall)) * draw.uniform(1 - noise, 1 + noise) for t in range(updates)
    ]
    for _ in range(draw.randrange(4)):
        losses[draw.randrange(min(10, updates - 1), updates)] *= draw.choice((0.05, 30.0, 1e6))
    return losses


@pytest.mark.parametrize("share", [1 / 20, 1 / 3], ids=["sign", "others"])
def test_the_generator_on_the_page_is_the_default_rule(share: float) -> None:
    page: dict[str, Any] = {}
    (code,) = (code for kind, code in fences(ROOT / "docs" / "how-it-works.md") if kind == "python")
    exec(code, page)
    draw, ended = random.Random(0), set()
    optimizer_class = torch.optim.SGD if share == 1 / 3 else torch.optim.AdamW
    for updates in [2, 9, 11, 9_000, 13_000, *(draw.randrange(12, 150) for _ in range(95))]:
        lr = draw.uniform(1e-4, 1.0)
        optimizer = optimizer_class([torch.nn.Parameter(torch.zeros(1))], lr=lr)
        sched = AdaptiveWarmup(optimizer, updates, trained=False)
        rates = page["warmup"](lr, updates, share)
        rate = next(rates)
        for loss in curve(draw, updates):
            assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
            optimizer.step()
            sched.step(loss)
            rate = rates.send(loss) if sched.last_epoch < updates else rate
        ended.add(sched.ended_by)
    assert ended == {"loss", "clock"}
    assert len(code[code.index("def warmup") : code.index("rates = ")].strip().splitlines()) <= 30
