"""A mixture of experts as a task of the lab: what is trained on, what is reported, and what is stored."""

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from autowarm.lab.config import ModelConfig, RunConfig
from autowarm.lab.tasks import make_task
from autowarm.lab.tasks.models import llama, parameters, token_loss
from autowarm.lab.training.loop import train
from autowarm.lab.training.stopping import Interrupted


@pytest.fixture
def sparse(run: RunConfig) -> RunConfig:
    return dataclasses.replace(run, model=dataclasses.replace(run.model, experts=4, experts_per_token=1))


def test_the_balancing_loss_is_trained_on_and_not_reported(sparse: RunConfig) -> None:
    task = make_task(sparse)
    model = task.model()
    batch = next(iter(task.batches(0, slice(None))))
    with torch.no_grad():
        reported, trained = task.scores(model, batch)["loss"], task.loss(model, batch)
        unequal = model(input_ids=batch[0][:, :-1]).aux_loss
    assert torch.equal(reported, token_loss(model, *batch))
    assert 1 <= unequal <= 4  # 1 where every expert has the same load, 4 where one has all
    torch.testing.assert_close(trained, reported + sparse.model.router_loss * unequal)
    with pytest.raises(ValueError, match="experts_per_token must be from 1 to model.experts = 4, got 5"):
        dataclasses.replace(sparse, model=dataclasses.replace(sparse.model, experts_per_token=5))


@pytest.mark.parametrize("fused", [False, True])
def test_it_trains_resumes_to_the_bit_and_is_stored_for_transformers(
    sparse: RunConfig, tmp_path: Path, fused: bool
) -> None:
    model = dataclasses.replace(sparse.model, fused_qkv=fused, scaled_residual=True)
    sparse = dataclasses.replace(sparse, model=model)
    straight = train(sparse, tmp_path / "straight")
    assert straight["val_loss"] < straight["first_loss"]
    with pytest.raises(Interrupted):
        train(sparse, tmp_path / "cut", lambda progress: progress.step == 5)
    assert train(sparse, tmp_path / "cut")["val_loss"] == straight["val_loss"]
    stored = AutoModelForCausalLM.from_pretrained(tmp_path / "cut")
    task = make_task(sparse)
    with torch.no_grad():
        losses = [task.scores(stored, batch)["loss"] for batch in task.validation(slice(None))]
    assert torch.stack(losses).mean().item() == pytest.approx(straight["val_loss"], abs=1e-5)


def test_counts_and_scales_are_those_of_the_network() -> None:
    config = ModelConfig(layers=2, width=64, heads=2, ff=96, vocab_size=300, seq_len=16, experts=4)
    model = llama(dataclasses.replace(config, scaled_residual=True), seed=0)
    assert sum(p.numel() for p in model.parameters()) == parameters(config)
    std = config.init_scale / 8
    experts = model.model.layers[0].mlp.experts
    assert experts.gate_up_proj.std().item() == pytest.approx(std, rel=0.1)
    assert experts.down_proj.std().item() == pytest.approx(std / 2, rel=0.1)  # √(2·2 layers)
