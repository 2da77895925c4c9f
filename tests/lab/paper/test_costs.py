import csv
import dataclasses
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from autowarm.lab.config import LLAMA_124M, EngineConfig, ModelConfig, OptimizerConfig
from autowarm.lab.config.build import build, read_yaml
from autowarm.lab.config.runs import RunConfig
from autowarm.lab.paper.costs import describe, forecast, hours, memory, operations
from autowarm.lab.registry import OPTIMIZERS
from autowarm.lab.tasks.models import flops_per_token, llama, token_loss
from autowarm.lab.training.optimizers import make_optimizer

DOCS = Path(__file__).parents[3] / "docs"


def test_costs_count_what_is_known() -> None:
    values, _ = read_yaml("paper/warmup-sweep-124M")
    run = build(RunConfig, values["base"], "x")
    # Six operations a parameter and token, and 6 % of attention; Muon's share is small at this batch.
    assert operations(run) == pytest.approx(flops_per_token(LLAMA_124M) * 32 * 512, rel=0.25)
    assert hours(dataclasses.replace(run, steps=2 * run.steps), "paper") == pytest.approx(2 * hours(run, "paper"))


@pytest.mark.parametrize("preset", ["llama-124m", "llama-210m"])
def test_memory_is_the_documented_arithmetic(preset: str) -> None:
    """That of the table in docs/training.md, for micro-batches of 2 × 512 tokens."""
    engine = EngineConfig(precision="bfloat16", accumulate=4)
    parts = memory(RunConfig(model=build(RunConfig, read_yaml(preset)[0], preset).model, batch_size=8, engine=engine))
    with open(DOCS / "data/tables/training-memory.csv", newline="") as file:
        (row,) = [row for row in csv.reader(file) if row[0].lower() == preset.removeprefix("llama-")]
    assert [f"{size / 2**30:.2f}" for size in parts.values()] == row[1:7]
    assert f"{sum(parts.values()) / 2**30:.2f}" == row[7]


def test_fsdp_shares_what_ddp_copies() -> None:
    run = RunConfig(model=LLAMA_124M, batch_size=8)
    ddp, sharded = (
        memory(dataclasses.replace(run, engine=EngineConfig(parallel=kind)), world=4) for kind in ("ddp", "fsdp")
    )
    for name in ("weights", "gradients", "optimizer state"):
        assert ddp[name] == 4 * sharded[name]
    for name in ("activations", "logits"):
        assert ddp[name] == sharded[name] == memory(run)[name] / 4


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizers_state_is_what_it_keeps_or_is_said_not_to_be_counted(name: str, tmp_path: Path) -> None:
    model = ModelConfig(layers=1, width=16, heads=2, ff=32, vocab_size=280, seq_len=8)
    run = RunConfig(model=model, optimizer=OptimizerConfig(name, 0.01))
    uncounted = f"; the state of {name} is not counted" in "\n".join(describe(run, tmp_path))
    assert uncounted == (name == "soap")
    if uncounted:
        assert memory(run)["optimizer state"] == 0
        return
    net = llama(model, 0)
    assert memory(run)["weights"] == 4 * sum(p.numel() for p in net.parameters())
    optimizer = make_optimizer(net, run.optimizer)
    token_loss(net, torch.zeros(2, 9, dtype=torch.long)).backward()
    optimizer.step()
    tensors = [leaf for leaf in tree_leaves(optimizer.state_dict()) if isinstance(leaf, torch.Tensor) and leaf.ndim]
    held = sum({leaf.data_ptr(): leaf.numel() for leaf in tensors}.values())
    assert memory(run)["optimizer state"] == pytest.approx(4.0 * held, rel=0.01)


def test_a_forecast_adds_up() -> None:
    engine = EngineConfig(eval_every=30)
    run = RunConfig(steps=100, checkpoint_every=40, eval_batches=5, engine=engine)
    found = forecast(run, peak=None)
    assert (found.evaluations, found.checkpoints) == (4, 3)  # after 30, 60, 90 and 100; after 40, 80 and 100
    assert found.total == pytest.approx(100 * found.step + found.evaluating + found.saving)
    assert forecast(run, None, last=25).evaluating == pytest.approx(2 * found.evaluating)
    wide = dataclasses.replace(run, model=LLAMA_124M)
    assert forecast(wide, 1e15).step < forecast(wide, 1e14).step < forecast(wide, None).step
    assert hours(run, "tiny") == pytest.approx(100 * found.step / 3600)
