"""Steps of 2 and of 4 real processes (gloo) against those of one, and how often each oracle is asked."""

import pickle
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

from autowarm import Muon
from autowarm.optim.step import sharing
from tests.optim.ranks.step_ranks import MAKERS, REPLICATED, SIZES, SUMMED, Net, alone, small, three_steps, train, worst
from tests.programs import rank_environment

GRIDS = ("blocks", "twice", "tensor_parallel")  # see step_ranks
TOLERANCE = 1e-5  # of steps of about 0.1: stacks of other sizes are multiplied, and summed, in another order


@pytest.fixture(scope="module")
def everything(rank_launcher, tmp_path_factory):
    # One set of processes serves both sizes.
    folder = tmp_path_factory.mktemp("ranks")
    environments = [rank_environment(rank, max(SIZES), port=0) for rank in range(max(SIZES))]
    ended = rank_launcher.run_together([Path(__file__).parent / "step_ranks.py", folder], environments)
    assert {one.status for one in ended} == {0}, "".join(one.stderr for one in ended)
    return {size: pickle.loads((folder / f"{size}.pickle").read_bytes()) for size in SIZES}


@pytest.fixture(params=SIZES)
def ranks(everything, request):
    return everything[request.param]


def test_ranks_step_as_one_process_and_leave_out_the_same_updates_and_in_rounds_too(ranks):
    """A round has a tensor, where two would go in one."""
    hows = ("ddp", "fsdp") if len(ranks) == 2 else ("ddp", "fsdp", "hsdp", *GRIDS)
    cases = {(how, name) for how in hows for name in (REPLICATED if how == "ddp" else MAKERS)}
    cases |= {(f"{how}, spoilt", name) for how, name in cases if how in ("ddp", "fsdp") or name == "muon"}
    cases |= {(f"{how}, in rounds", "muon") for how in hows} | {("fsdp, in parts", name) for name in SUMMED}
    assert cases == ranks[0].keys() - {("fsdp, in single precision", "own"), "fsdp1"}
    for case in cases:
        assert max(found[case][0] for found in ranks) <= TOLERANCE, case


@pytest.mark.parametrize(("how", "matrices"), [("ddp", 8), ("fsdp", 4)])
def test_no_oracle_is_asked_twice(ranks, how, matrices):
    counts = [found[how, "muon"][1] for found in ranks]
    # The sharded experts are whole matrices on their ranks and do not travel. Three steps were made.
    assert sum(len(count) for count in counts) == 3 * matrices
    assert all(counts)


def test_copies_of_shards_share_the_work(everything):
    counts = [found["hsdp", "muon"][1] for found in everything[4]]
    assert sum(map(len, counts)) == 3 * 4
    assert all(counts)


# Shards of the experts alone are whole matrices.
@pytest.mark.parametrize(("shard", "matrices"), [("blocks", 8), ("twice", 4), ("tensor_parallel", 4)])
def test_the_ranks_along_one_side_of_a_mesh_share_the_work_on_shards_of_shards(everything, shard, matrices):
    assert sum(len(found[shard, "muon"][1]) for found in everything[4]) == 2 * 3 * matrices


def test_an_oracle_that_computes_in_another_dtype_than_its_tensors_can_be_shared_out(ranks):
    assert max(found["fsdp, in single precision", "own"][0] for found in ranks) <= 2**-6  # rounding of bfloat16


def test_what_fsdp1_has_cut_is_refused_unless_each_entry_steps_by_itself(ranks):
    right = {("lion", "before"), ("lion", "after"), ("lion, decay by role", "after")}
    for found in ranks:
        for case, said in found["fsdp1"].items():
            if case in right:
                assert said <= TOLERANCE, case
            else:
                assert "FSDP1" in said, case
                assert "fully_shard" in said, case


def test_shared_out_work_is_even_and_whole():
    work = [float(x) for x in torch.randint(1, 100, (50,), generator=torch.Generator().manual_seed(1))]
    owners = sharing.share_out(work, 4)
    loads = [sum(w for w, owner in zip(work, owners, strict=True) if owner == rank) for rank in range(4)]
    assert sum(loads) == sum(work)
    assert max(loads) - min(loads) <= max(work)


def test_a_group_of_one_process_changes_nothing(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = Net()
        train(model, MAKERS["muon"](model, process_group=dist.group.WORLD), lambda p, g: g)
        assert worst(model, alone("muon")) <= TOLERANCE
        with warnings.catch_warnings(action="ignore"):  # FSDP1 would rather be told that it leaves tensors whole
            cut = FullyShardedDataParallel(small(), use_orig_params=True, device_id=torch.device("cpu"))
        other = small()
        for one in (cut, other):
            three_steps(one, Muon.from_model(one, lr=0.1, dtype=torch.float32))
        assert worst(cut, other) <= TOLERANCE
    finally:
        dist.destroy_process_group()
