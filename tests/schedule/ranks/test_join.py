"""Ranks with uneven inputs, in real processes: within `torch.distributed.algorithms.Join`, and without."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Lion
from tests.programs import Launcher, rank_environment
from tests.schedule.ranks.join_ranks import loss_at, update

INPUTS = ((24, 24), (9, 24), (24, 23), (0, 24))


def scenarios(models: list[bool], inputs: Sequence[tuple[int, int]], **options: Any) -> list[dict[str, Any]]:
    return [
        {"join": True, "model": model, "tensor": tensor, "order": order, "inputs": each, "peak": "given", "skipped": []}
        | options
        for model, tensor, order, each in itertools.product(models, (False, True), ("before", "after"), inputs)
    ]


LIVES = [
    *scenarios([False], INPUTS),
    *scenarios([True], INPUTS[1::2]),
    *scenarios([False], INPUTS[1::2], skipped=[0, 1, 11, 15]),
    *scenarios([True], [(5, 34), (34, 33)], peak="auto"),
]
UNEVEN = [
    {"join": False, "tensor": tensor, "inputs": inputs}
    for tensor, inputs in itertools.product((False, True), ((20, 21), (1, 0)))
]


@pytest.fixture(scope="module")
def ranks(rank_launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """What two gloo ranks saw of each scenario."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    ended = rank_launcher.run_together(
        [Path(__file__).parent / "join_ranks.py", folder, json.dumps([*LIVES, *UNEVEN])],
        [rank_environment(rank, 2, port=0) for rank in (0, 1)],
    )
    assert [one.status for one in ended] == [0, 0], "".join(one.stderr for one in ended)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def name_of(scenario: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in scenario.items())


def alone(scenario: dict[str, Any]) -> list[float]:
    """The rates of one process that sees the mean losses."""
    p = nn.Parameter(torch.zeros(4, 4))
    p.grad = torch.ones(4, 4)
    opt, rates = Lion([p], lr=0.01), []
    sched = AdaptiveWarmup(opt, 50, trained=False)
    for t in range(max(scenario["inputs"])):
        here = [loss_at(rank, t) for rank in (0, 1) if t < scenario["inputs"][rank]]
        loss = torch.tensor(sum(here) / len(here), dtype=torch.float64, requires_grad=True)
        update(scenario, t, sched, loss)
        rates += sched.get_last_lr()
    return rates


@pytest.mark.parametrize("i", range(len(LIVES)), ids=[name_of(one) for one in LIVES])
def test_a_rank_without_inputs_follows_the_others(i: int, ranks: list[list[dict[str, Any]]]) -> None:
    scenario, seen = LIVES[i], [rank[i] for rank in ranks]
    short, long = sorted((one["rates"] for one in seen), key=len)
    assert short == long[: len(short)]
    assert seen[0]["state"] == seen[1]["state"]
    if scenario["model"]:
        assert seen[0]["weights"] == seen[1]["weights"]
    if scenario["peak"] == "given":
        assert long == pytest.approx(alone(scenario), rel=1e-9)


@pytest.mark.parametrize("i", range(len(UNEVEN)), ids=[name_of(one) for one in UNEVEN])
def test_a_rank_that_waits_in_vain_is_told_what_for(i: int, ranks: list[list[dict[str, Any]]]) -> None:
    inputs = UNEVEN[i]["inputs"]
    for rank, seen in enumerate(ranks):
        error = seen[len(LIVES) + i]["error"]
        if inputs[rank] < max(inputs):
            assert error is None
        else:
            assert f"rank {rank} waited in vain for the losses of the other ranks, after {inputs[rank]} upd" in error
            assert "Join([model, scheduler])" in error


def test_a_rank_outside_the_group_is_told_so_by_whatever_it_hands_the_group_to(
    ranks: list[list[dict[str, Any]]],
) -> None:
    assert ranks[0][-1] == {}
    assert len(ranks[1][-1]) == 7
    assert all(told.startswith("rank 1 is not in process_group") for told in ranks[1][-1].values())
