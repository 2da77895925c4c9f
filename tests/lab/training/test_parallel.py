"""Runs of two real processes (gloo, as torchrun starts them) against those of one: same batches, so same numbers."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from autowarm.lab.config import LabError
from autowarm.lab.data.images import digits, validation_batches
from autowarm.lab.training.metrics import read_metrics
from autowarm.lab.training.parallel import Ranks
from tests.programs import Launcher, clean_environment, free_port, rank_environment

from . import two_ranks
from .two_ranks import EXACT, WAYS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, corpus_folder: Path) -> Path:
    created: Path = tmp_path_factory.mktemp("ranks")
    cache = {"AUTOWARM_CACHE": os.environ["AUTOWARM_CACHE"]}
    launcher = Launcher(["autowarm.lab.training.loop", "transformers.models.llama.modeling_llama"],
                        clean_environment(created) | cache, created)  # fmt: skip
    command = [Path(__file__).with_name("two_ranks.py"), created, corpus_folder]
    port = free_port()
    ranks = [rank_environment(rank, 2, port) for rank in (0, 1)]
    ended = [launcher.run(command), *launcher.run_together(command, ranks)]
    launcher.close()
    assert {one.status for one in ended} == {0}, "".join(one.stderr for one in ended)
    return created


def curve(folder: Path) -> torch.Tensor:
    return torch.tensor([row["loss"] for row in read_metrics(folder)], dtype=torch.float64)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", EXACT)
def test_gradients_and_steps_in_double_precision_are_those_of_one_process(folder: Path, way: str, name: str) -> None:
    losses, gradients, weights = zip(*(
        (curve(place), torch.load(place / "gradients.pt"), load_file(place / "model.safetensors"))
        for place in (folder / which / name for which in ("alone", way))
    ), strict=True)  # fmt: skip
    assert len(losses[0]) == 16
    for alone, together in (losses, gradients, weights):
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)
    assert max(value.abs().max().item() for value in gradients[0].values()) > 1e-3


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_ranks_go_on_to_the_bit_and_stop_together(folder: Path, way: str) -> None:
    assert torch.equal(curve(folder / way / "straight"), curve(folder / way / "broken"))
    weights = [(folder / way / name / "model.safetensors").read_bytes() for name in ("straight", "broken")]
    assert weights[0] == weights[1]


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_ranks_are_judged_by_the_running_averages_that_they_store(folder: Path, way: str) -> None:
    results = [
        json.loads((folder / way / name / "result.json").read_text()) for name in ("averages straight", "averages")
    ]
    weights = [load_file(folder / way / name / "model.safetensors") for name in ("averages straight", "averages")]
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())
    assert results[0]["val_loss"] == results[1]["val_loss"]
    model = two_ranks.normed().eval()
    model.load_state_dict(weights[0])
    batches = validation_batches(digits(), 2, 4, slice(None))
    losses = [F.cross_entropy(model(pixels), labels).item() for pixels, labels in batches]
    assert results[0]["val_loss"] == pytest.approx(sum(losses) / 2, rel=1e-5)


def test_a_step_draws_what_torchs_own_seeding_would_give() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    Ranks(0, 1, torch.device("cpu")).seed(7)
    assert torch.equal(torch.rand(3), expected)


def test_a_batch_that_cannot_be_shared_out_is_refused() -> None:
    assert Ranks(1, 3, torch.device("cpu")).rows(6, 2) == slice(2, 4)
    with pytest.raises(LabError, match=r"batch_size 6 must be a multiple of .* 2 × 2"):
        Ranks(0, 2, torch.device("cpu")).rows(6, 2)
