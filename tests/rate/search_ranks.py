"""The search on ranks: checks that `tests/optim/ranks/test_ranks.py` makes with its own."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from autowarm import AdaptiveWarmup, Muon, find_rate
from tests.optim.ranks.checks import Cases, error_of, on_ranks
from tests.rate.test_find import snapshot


def of_all(x: Any) -> list[Any]:
    """What each rank has."""
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, x)
    return every


@on_ranks(4)
def ranks_find_the_same_rate_by_the_mean_of_their_losses(mesh: DeviceMesh) -> Cases:
    rank = mesh.get_local_rank()
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    model = DistributedDataParallel(bare)
    optimizer = Muon.from_model(bare, lr=0.01, process_group=dist.group.WORLD)
    scheduler = AdaptiveWarmup(optimizer, 50)
    torch.manual_seed(rank)  # each rank has data and dropout of its own

    def closure_with(factor: Callable[[], float], losses: list[float]) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            assert all(p.isfinite().all() for p in bare.parameters())
            x = torch.randn(256, 8)
            loss = (model(x) - x[:, :1] - 1).square().mean() + rank  # one rank alone would see another level
            loss = loss * factor()
            loss.backward()
            losses.append(loss.item())
            return loss

        return closure

    def train(steps: int) -> None:
        for _ in range(steps):
            loss = closure_with(lambda: 1.0, [])()
            optimizer.step()
            scheduler.step(loss)
            optimizer.zero_grad()

    train(3)
    was, local_losses = snapshot(bare, optimizer), []
    result = find_rate(model, optimizer, closure_with(lambda: 1.0, local_losses), steps=60)
    yield "nothing is left behind", snapshot(bare, optimizer) == was
    means = [sum(losses) / len(losses) for losses in zip(*of_all(local_losses), strict=True)]
    yield "mean", result.reason is None and result.losses.tolist() == pytest.approx(means, rel=1e-9)
    train(3)
    by_rank = of_all((result.losses.tolist(), result.suggestion, result.interval, optimizer.param_groups[0]["lr"]))
    yield "all the same", all(one == by_rank[0] for one in by_rank)
    elementwise = torch.optim.AdamW(bare.parameters(), lr=1.0)
    # Two in a row are a break; one alone is dropped by all, and the next batch comes instead.
    for bad, counts in (((10, 11), (10, 11)), ((10,), (20, 21))):
        calls, losses = itertools.count(1), []
        spoilt = closure_with(lambda: math.nan if next(calls) in bad and rank == 1 else 1.0, losses)  # noqa: B023
        steps = find_rate(model, elementwise, spoilt, steps=20, highest=1e-3)
        yield ("spoilt on one rank", bad), (len(steps.losses), len(losses)) == counts
    message = error_of(lambda: find_rate(model, optimizer, closure_with(lambda: 1.0, []), steps=60 + rank))
    yield ("settings differ", message), "ranks disagree: find_rate has different settings on them" in message
