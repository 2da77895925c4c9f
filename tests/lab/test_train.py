import dataclasses
import json
import logging
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from autowarm.lab.config import LabError, ModelConfig, OptimizerConfig, RunConfig, ScheduleConfig
from autowarm.lab.files import locked
from autowarm.lab.tasks.models import attend_plainly, llama, token_loss
from autowarm.lab.training.loop import (
    Interrupted,
    Progress,
    hand_set,
    make_optimizer,
    read_metrics,
    train,
)

SCHEDULES = {
    "linear": ScheduleConfig(kind="linear", warmup_steps=3),
    "adaptive": ScheduleConfig(kind="adaptive"),
    "paper": ScheduleConfig(kind="paper", target_loss=1.0, peak_gap=4.2),
}


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on how often a run was interrupted."""
    return {key: value for key, value in result.items() if key not in ("seconds", "tokens_per_second")}


def stop_at(step: int) -> Any:
    return lambda progress: progress.step == step


def crash_at(step: int) -> Any:
    def crash(progress: Progress) -> None:
        if progress.step == step:
            raise RuntimeError("power cut")

    return crash


def test_the_hand_set_schedule_starts_at_the_lowest_rate_peaks_and_ends_near_zero() -> None:
    ratios = [hand_set(step, 4, 12, 100) for step in range(12)]
    assert ratios[0] == 0.01
    assert ratios[4] == 1.0 == max(ratios)
    assert ratios[8] == pytest.approx(0.5)
    assert ratios[11] == pytest.approx((1 + math.cos(math.pi * 7 / 8)) / 2)


@pytest.mark.parametrize("kind", list(SCHEDULES))
@pytest.mark.parametrize("optimizer", ["muon", "lion", "signsgd", "normsgd"])
def test_the_first_update_uses_the_lowest_rate(run: RunConfig, optimizer: Any, kind: str, tmp_path: Path) -> None:
    run = dataclasses.replace(
        run, optimizer=OptimizerConfig(name=optimizer, lr=0.01), schedule=SCHEDULES[kind], steps=2, eval_batches=1
    ) if kind != "linear" else dataclasses.replace(run, optimizer=OptimizerConfig(name=optimizer, lr=0.01))  # fmt: skip
    train(run, tmp_path)
    assert read_metrics(tmp_path)[0]["lr"] == pytest.approx(0.01 / (10 if kind == "adaptive" else 100))


@pytest.mark.parametrize("kind", list(SCHEDULES))
def test_stopped_and_crashed_runs_end_with_the_same_bits(run: RunConfig, kind: str, tmp_path: Path) -> None:
    run = dataclasses.replace(run, schedule=SCHEDULES[kind])
    straight = train(run, tmp_path / "straight")
    for callback, error in ((stop_at(2), Interrupted), (stop_at(5), Interrupted), (crash_at(11), RuntimeError)):
        with pytest.raises(error):
            train(run, tmp_path / "broken", callback)
    broken = train(run, tmp_path / "broken")
    assert numbers(straight) == numbers(broken)
    curves = [
        [(row["step"], row["loss"], row["lr"]) for row in read_metrics(tmp_path / name)]
        for name in ("straight", "broken")
    ]
    assert curves[0] == curves[1]
    assert [row[0] for row in curves[0]] == list(range(1, run.steps + 1))
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("straight", "broken")]
    assert weights[0] == weights[1]


def test_a_finished_run_is_not_made_again(run: RunConfig, tmp_path: Path) -> None:
    first = train(run, tmp_path)
    assert train(run, tmp_path, crash_at(1)) == first


def test_another_config_in_the_same_folder_is_refused_with_the_differences(run: RunConfig, tmp_path: Path) -> None:
    train(run, tmp_path)
    with pytest.raises(LabError, match=r"config\.seed: 0 → 1; config\.clip: 0\.5 → 1\.0|config\.seed: 0 → 1"):
        train(dataclasses.replace(run, seed=1), tmp_path)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    run: RunConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    straight = train(run, tmp_path / "straight")
    with pytest.raises(RuntimeError):
        train(run, tmp_path / "broken", crash_at(9))
    newest = max((tmp_path / "broken").glob("checkpoint-*/*.distcp"))
    newest.write_bytes(newest.read_bytes()[:-100])
    with caplog.at_level(logging.WARNING):
        assert numbers(train(run, tmp_path / "broken")) == numbers(straight)
    assert "does not match its checksums" in caplog.text


def test_a_run_that_explodes_is_marked_and_ends(run: RunConfig, tmp_path: Path) -> None:
    wild = dataclasses.replace(run, optimizer=OptimizerConfig(name="lion", lr=1e18), clip=0.0)
    result = train(wild, tmp_path)
    assert result["diverged"]
    assert json.loads((tmp_path / "result.json").read_text()) == result  # strict JSON, without NaN


def test_same_seed_same_start_and_batches_whatever_the_schedule(run: RunConfig, tmp_path: Path) -> None:
    losses = set()
    for kind, schedule in SCHEDULES.items():
        train(dataclasses.replace(run, schedule=schedule), tmp_path / kind)
        losses.add(read_metrics(tmp_path / kind)[0]["loss"])
    assert len(losses) == 1


def test_a_folder_has_one_writer(run: RunConfig, tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(LabError, match="another process is working"):
        train(run, tmp_path)


def test_options_that_the_optimizer_does_not_know_are_named(run: RunConfig) -> None:
    with pytest.raises(LabError, match="do not suit normsgd"):
        make_optimizer(torch.nn.Linear(2, 2), OptimizerConfig(name="normsgd", options={"betas": [0.9, 0.9]}))


def test_the_folder_holds_weights_that_transformers_loads_and_tensorboard_events(
    run: RunConfig, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    train(run, tmp_path)
    assert sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(tmp_path).parameters()) > 0
    assert list(tmp_path.glob("events.out.tfevents.*"))
    assert not list(tmp_path.glob("checkpoint-*"))


def test_pieces_bound_the_memory_of_training_and_of_evaluation(
    run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def watched(model: Any, tokens: torch.Tensor) -> torch.Tensor:
        seen.append(len(tokens))
        return token_loss(model, tokens)

    monkeypatch.setattr("autowarm.lab.tasks.builtin.token_loss", watched)
    whole = train(run, tmp_path / "whole")
    assert set(seen) == {run.batch_size}
    seen.clear()
    cut = dataclasses.replace(run, engine=dataclasses.replace(run.engine, accumulate=2))
    pieces = train(cut, tmp_path / "pieces")
    assert set(seen) == {run.batch_size // 2}
    assert pieces["val_loss"] == pytest.approx(whole["val_loss"], rel=1e-3)


@pytest.mark.parametrize("length", [32, 257])
def test_attention_by_plain_products_is_attention(length: int) -> None:
    model = llama(ModelConfig(layers=2, width=32, heads=2, ff=48, vocab_size=300, seq_len=512), seed=0)
    tokens = torch.randint(300, (2, length + 1), generator=torch.Generator().manual_seed(0))
    expected = token_loss(model, tokens)
    attend_plainly(model, length)
    assert model.config._attn_implementation == ("eager" if length == 32 else "sdpa")
    torch.testing.assert_close(token_loss(model, tokens), expected)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler here")
def test_a_compiled_model_trains_alike(run: RunConfig, tmp_path: Path) -> None:
    run = dataclasses.replace(run, steps=5, eval_batches=1)
    eager = train(run, tmp_path / "eager")
    compiled = dataclasses.replace(run, engine=dataclasses.replace(run.engine, compile=True))
    assert train(compiled, tmp_path / "compiled")["val_loss"] == pytest.approx(eager["val_loss"], rel=1e-4)
    # Its weights have the names of a model that is not compiled.
    names = [sorted(load_file(tmp_path / folder / "model.safetensors")) for folder in ("eager", "compiled")]
    assert names[0] == names[1]


def test_without_its_package_a_remote_log_is_one_line(
    run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    wanted = dataclasses.replace(run, engine=dataclasses.replace(run.engine, wandb="project"))
    with pytest.raises(LabError, match="pip install wandb"):
        train(wanted, tmp_path)
