"""A loss that is not finite is dropped once, with its batch; the weights never see its gradients."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from autowarm import find_rate
from autowarm.rate import RateSearch

SCALERS: dict[str, Callable[[], torch.amp.GradScaler | None]] = {
    "no scaler": lambda: None,
    "scaler": lambda: torch.amp.GradScaler("cpu", init_scale=8.0),
    "disabled scaler": lambda: torch.amp.GradScaler("cpu", enabled=False),
}


@pytest.mark.parametrize("scaling", SCALERS)
def test_one_bad_batch_changes_nothing_and_a_second_in_a_row_is_a_break(scaling: str) -> None:
    def search(*bad: int) -> RateSearch:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        scaler, optimizer = SCALERS[scaling](), torch.optim.AdamW(model.parameters(), lr=1.0)
        calls = itertools.count()

        def closure() -> torch.Tensor:
            assert all(p.isfinite().all() for p in model.parameters())
            now = next(calls)
            drawn = torch.get_rng_state()
            x = torch.randn(32, 8)
            loss = (model(x) - x[:, :1]).square().mean()
            if now in bad:
                loss = loss * math.nan
                torch.set_rng_state(drawn)  # the next batch comes instead
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is not None:
                scaler.unscale_(optimizer)
            return loss

        return find_rate(model, optimizer, closure, total_steps=1000, scaler=scaler)

    clean = search()
    assert clean.reason is None
    for bad in ((0,), (40,), (40, 60)):
        found = search(*bad)
        np.testing.assert_array_equal(found.losses, clean.losses)
        assert found.suggestion == clean.suggestion
    broken = search(40, 41)
    np.testing.assert_array_equal(broken.losses[:-1], clean.losses[:40])
    assert math.isnan(broken.losses[-1])
    assert broken.broken
