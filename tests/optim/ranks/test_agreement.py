"""Ranks whose gradients are not the same: every rank skips the same tensors, or every rank raises an error."""

import pickle
from pathlib import Path

import pytest

from tests.optim.ranks.agreement_ranks import CHAINS, SIZES, UNEVEN, WHERE
from tests.programs import rank_environment


@pytest.fixture(scope="module")
def everything(rank_launcher, tmp_path_factory):
    folder = tmp_path_factory.mktemp("agreement")
    environments = [rank_environment(rank, max(SIZES), port=0) for rank in range(max(SIZES))]
    ended = rank_launcher.run_together([Path(__file__).parent / "agreement_ranks.py", folder], environments)
    assert {one.status for one in ended} == {0}, "".join(one.stderr for one in ended)
    files = [*map(str, SIZES), *(f"uneven-{rank}" for rank in range(max(SIZES)))]
    found = {file: pickle.loads((folder / f"{file}.pickle").read_bytes()) for file in files}
    return {int(file) if file.isdigit() else file: content for file, content in found.items()}


@pytest.fixture(params=SIZES)
def ranks(everything, request):
    return everything[request.param]


def cases(ranks, how, what):
    """By case, the result of every rank."""
    chosen = [key for key in ranks[0][how] if key[0] == what]
    assert chosen
    return {key[1:]: [found[how][key] for found in ranks] for key in chosen}


def test_what_is_not_finite_on_one_rank_is_skipped_on_all(ranks):
    for case, results in cases(ranks, "copies", "not finite").items():
        for gap, skipped_once in results:
            assert gap <= 1e-5, case
            assert skipped_once, case


@pytest.mark.parametrize("what", ["missing", "dtype", "sparse"])
def test_other_gradients_on_one_rank_are_an_error_on_every_rank_and_nothing_moves(ranks, what):
    for case, results in cases(ranks, "copies", what).items():
        for errors, same in results:
            # On a device a rank whose own gradients have not changed learns of it a step later.
            first = next((error for error in errors[: 1 if case[0] == "host" else 2] if error), None)
            assert first, case
            assert same, case


@pytest.mark.parametrize(("what", "said"), [("missing", "none for {}"), ("dtype", "like for {} (torch.bfloat16)")])
def test_a_rank_whose_gradients_are_others_names_the_tensor(ranks, what, said):
    names = {"an embedding": "0.weight", "a matrix": "2.weight", "a vector": "2.bias"}
    for (where, name, tensor, _), results in cases(ranks, "copies", what).items():
        if where == "host" and name in ("muon", "sign"):
            *others, own = (errors[0] for errors, _ in results)
            assert said.format(names[tensor]) in own
            assert all("another says what it lacks" in error for error in others)


def test_ranks_that_agree_again_go_on(ranks):
    for what in ("missing", "sparse"):
        for case, results in cases(ranks, "copies", what).items():
            if case[0] == "host":
                assert all(errors[1] is None for errors, _ in results), case


def test_other_models_are_an_error_on_every_rank(ranks):
    for case, results in cases(ranks, "copies", "model").items():
        assert all("ranks have different tensors" in error for error in results), case


@pytest.mark.parametrize("how", ["fsdp", "hsdp"])
def test_a_shard_without_a_gradient_is_an_error_on_every_rank(everything, how):
    for ranks in map(everything.get, SIZES):
        if how in ranks[0]:
            for case, results in cases(ranks, how, "missing").items():
                assert all(errors[0] and same and errors[1] is None for errors, same in results), case


@pytest.mark.parametrize("steps", UNEVEN)
def test_a_rank_that_waits_in_vain_is_told_what_for(everything, steps):
    for rank, made in enumerate(steps):
        error = everything[f"uneven-{rank}"][steps]
        if made < max(steps):
            assert error is None
        else:
            assert f"rank {rank} waited in vain for the other ranks, after {min(steps)} steps of Muon" in error
            assert "drop_last=True" in error


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", CHAINS)
def test_a_flag_reaches_all_ranks_that_groups_connect_also_where_none_holds_the_others(everything, name, where):
    for spoilt in (*range(4), "outlier"):
        found = [everything[f"uneven-{rank}"][name, spoilt, where] for rank in range(4)]
        assert [skipped for skipped, _ in found] == [1] * 4, spoilt
        # Every rank made the same two updates, so all tensors, which were equal, still are.
        assert len({p.numpy().tobytes() for _, params in found for p in params}) == 1, spoilt
