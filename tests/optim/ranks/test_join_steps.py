"""Ranks with uneven inputs whose optimizers exchange messages, within `torch.distributed.algorithms.Join`."""

import pickle
from pathlib import Path

import pytest
import torch

from tests.optim.ranks.join_steps_ranks import LENGTHS, MAKERS, UNEVEN, alone
from tests.programs import rank_environment


@pytest.fixture(scope="module")
def ranks(rank_launcher, tmp_path_factory):
    folder = tmp_path_factory.mktemp("join-steps")
    environments = [rank_environment(rank, 3, port=0) for rank in range(3)]
    ended = rank_launcher.run_together([Path(__file__).parent / "join_steps_ranks.py", folder], environments)
    assert {one.status for one in ended} == {0}, "".join(one.stderr for one in ended)
    return [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(3)]


@pytest.mark.filterwarnings("ignore:.*finite", "ignore:the loss was NaN")
@pytest.mark.parametrize("name", MAKERS)
def test_uneven_ranks_train_as_one_process_and_end_alike(name, ranks):
    cases = [key[1:] for key in ranks[0] if key[0] == name]
    assert len(cases) >= 2 * len(LENGTHS)
    for inputs, order in cases:
        first, second = (found[name, inputs, order] for found in ranks[:2])
        for ours, theirs in zip(first[:2], second[:2], strict=True):
            assert all(map(torch.equal, ours, theirs)), (inputs, order)
        for one, other in zip(first[2], second[2], strict=True):
            assert one.keys() == other.keys(), (inputs, order)
            assert all(torch.equal(one[key], other[key]) for key in one), (inputs, order)
        assert first[3] == second[3]
        if order != "before":
            one_process = alone(MAKERS[name], inputs, bad=5 if order == "bad" else -1)
            for ours, expected in zip(first[:2], one_process, strict=True):
                gap = max((a - b).abs().max().item() for a, b in zip(ours, expected, strict=True))
                assert gap <= 1e-5, (inputs, order)


@pytest.mark.parametrize("name", ["muon", "together"])
def test_an_error_reaches_the_rank_that_has_joined(name, ranks):
    errors = [found["error", name, True] for found in ranks]
    assert all("ranks have different gradients" in error for error in errors), errors


@pytest.mark.parametrize("name", ["muon", "together"])
def test_a_join_that_does_not_know_of_the_optimizer_is_an_error_on_every_rank(name, ranks):
    errors = [found["error", name, False] for found in ranks]
    assert all("Join([model, optimizer, scheduler])" in error for error in errors), errors


@pytest.mark.parametrize("steps", UNEVEN)
@pytest.mark.parametrize("name", MAKERS)
def test_a_rank_that_waits_in_vain_is_told_what_for(name, steps, ranks):
    for rank, made in enumerate(steps):
        error = ranks[rank]["uneven", name, steps]
        if made < max(steps):
            assert error is None
        else:
            who = "LMO" if name == "svd" else "Muon"
            assert f"rank {rank} waited in vain for the other ranks, after {min(steps)} steps of {who}" in error
            assert "Join([model, optimizer, scheduler])" in error
