"""Tasks that no rule has seen, fine-tuning, and a compiled task: each learns, and is the same each time."""

from pathlib import Path
from typing import Any

import pytest
import torch

from autowarm.lab.config import DataConfig, EngineConfig, OptimizerConfig, RunConfig, ScheduleConfig
from autowarm.lab.training.loop import train
from studies.tasks import TASKS, StudyTask, finetuning

RATES = {"unsmoothed": 3e-3, "cnn": 1e-2, "autoencoder": 3e-3, "regression": 3e-3, "copier": 3e-3, "policy": 1e-2,
         "recurrent": 1e-2, "graph": 1e-2, "flow": 1e-2, "contrastive": 3e-3, "series": 1e-2,
         "bytes-192": 3e-3}  # fmt: skip


SLOW = ("recurrent", "bytes-192")  # and fast learners


def result(task: str, folder: Path, steps: int = 60, lr: float = 3e-3, seed: int = 0, **engine: Any) -> dict[str, Any]:
    return train(
        RunConfig(
            task=StudyTask(task).key, steps=steps, seed=seed, clip=0.0, optimizer=OptimizerConfig("adamw", lr),
            schedule=ScheduleConfig("linear", steps // 12),
            engine=EngineConfig(precision="float32", device="cpu", keep_weights=False, **engine),
        ),
        folder,
        own=StudyTask(task),
    )  # fmt: skip


@pytest.mark.parametrize("task", RATES)
def test_a_fresh_task_learns(task: str, tmp_path: Path) -> None:
    before = result(task, tmp_path / "before", 1, 1e-9)["val_loss"]
    after = result(task, tmp_path / "after", 12 if task in SLOW else 60, RATES[task])
    assert not after["diverged"]  # a policy gradient may have either sign
    assert after["val_loss"] < 0.9 * before


@pytest.mark.parametrize("task", [*RATES])
def test_a_step_draws_the_same_whatever_was_drawn_before(task: str) -> None:
    draw = TASKS[task].draw
    first, other = draw(3, 7), draw(3, 8)
    torch.rand(5)
    assert all(torch.equal(a, b) for a, b in zip(first, draw(3, 7), strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], draw(4, 7)[0])


@pytest.mark.long
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.usefixtures("few_documents")
def test_fine_tuning_goes_on_from_what_was_learnt_and_scores_both_texts(
    lora: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, "tune-near", finetuning.fine_tuning("near", lora=lora, steps=40))
    found = result("tune-near", tmp_path, steps=10)
    assert 5.0 < found["first_loss"] < 6.1  # log 512 = 6.24 before anything is learnt
    assert found["val_loss"] < found["first_loss"]
    assert set(found["metric"]) == {"old_loss"}
    model = TASKS["tune-near"].model()
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert (trained < 0.5 * sum(p.numel() for p in model.parameters())) == lora


@pytest.mark.long
def test_a_compiled_network_serves_one_run_after_another_alike(tmp_path: Path) -> None:
    def loss(name: str, seed: int, compile: bool) -> float:
        return float(result("mlp", tmp_path / name, 5, seed=seed, compile=compile)["val_loss"])

    first, other, again = loss("a", 0, True), loss("b", 1, True), loss("c", 0, True)
    assert first == again != other
    assert first == pytest.approx(loss("d", 0, False), rel=1e-4)


def test_texts_are_apart() -> None:
    assert {finetuning.domain(name) for name in ("asyncio/events.py", "json/__init__.py")} == {"near"}
    assert finetuning.domain("jsonify.py") == "old"


@pytest.mark.long
def test_a_damaged_cache_of_weights_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    beginnings = [(name, text[:500]) for name, text in finetuning.read_documents(DataConfig())]
    monkeypatch.setattr(finetuning, "read_documents", lambda _: beginnings)
    monkeypatch.setattr(finetuning, "cache_folder", lambda: tmp_path)
    prepare = finetuning._prepared.__wrapped__
    expected = {name: weight.clone() for name, weight in prepare(2)[1].items()}  # the file's own bytes change below
    [path] = tmp_path.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:100])
    found = prepare(2)[1]
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
