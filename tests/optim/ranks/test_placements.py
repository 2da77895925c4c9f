"""Gradients of DTensors that are placed otherwise than their parameters: the step, the probe and the rate search."""

import pickle
from pathlib import Path

import pytest

from tests.optim.ranks.placement_ranks import MAKERS, PLANS, SIZES, TRAINED
from tests.programs import rank_environment


@pytest.fixture(scope="module")
def everything(rank_launcher, tmp_path_factory):
    folder = tmp_path_factory.mktemp("placements")
    environments = [rank_environment(rank, max(SIZES), port=0) for rank in range(max(SIZES))]
    ended = rank_launcher.run_together([Path(__file__).parent / "placement_ranks.py", folder], environments)
    assert {one.status for one in ended} == {0}, "".join(one.stderr for one in ended)
    return {size: pickle.loads((folder / f"{size}.pickle").read_bytes()) for size in SIZES}


@pytest.fixture(params=SIZES)
def ranks(everything, request):
    return everything[request.param]


@pytest.mark.parametrize("name", MAKERS)
def test_any_placement_of_a_gradient_steps_as_one_process_and_stays_as_it_was(ranks, name):
    cases = [key for key in ranks[0]["placements"] if key[0] == name]
    assert len(cases) >= (10 if name == "lion" else 5)
    for found in ranks:
        for case in cases:
            deviation, untouched = found["placements"][case]
            assert deviation <= 1e-5, case
            assert untouched, case


def test_only_what_an_oracle_depends_on_travels(everything):
    for found in everything[2]:
        gathered = {key for key, count in found["gathers"].items() if count}
        # Ranks share out the work on copies if an oracle takes long.
        svd = {("svd", f"({placed},)") for placed in ("Replicate()", "Shard(dim=0)", "Shard(dim=1)")}
        assert gathered == {("own", "(Shard(dim=1),)"), *svd}


def test_a_parallelised_model_trains_as_one_process(ranks):
    for found in ranks:
        assert {name for _, name in found["plans"]} == set(TRAINED)
        for (plan, name), (deviation, partial) in found["plans"].items():
            assert deviation <= 1e-5, (plan, name)
            assert partial is (plan != "columns and rows")  # this plan's inputs are the same on all ranks


@pytest.mark.parametrize(("what", "plan"), [*(("probe", plan) for plan in PLANS), ("rate", "sequence")])
def test_what_is_measured_is_what_one_process_measures(everything, what, plan):
    for found in everything[2]:
        measured, alone = found[what][plan], found[what]["alone"]
        assert len(measured) == len(alone) > 0
        for one, other in zip(measured, alone, strict=True):
            assert one == pytest.approx(other, rel=1e-6)


def test_a_gradient_on_other_ranks_than_its_parameter_is_refused_by_name(ranks):
    for found in ranks:
        for (_, what), (said, same) in found["refused"].items():
            assert "needs a gradient on the mesh of its parameter" in said, what
            assert "of shape (4, 4)" in said
            assert same
