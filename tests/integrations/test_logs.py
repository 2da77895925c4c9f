"""Logs that the real frameworks write: transformers' Trainer, Lightning, TensorBoard, and the lab's own."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from autowarm.logs import read, replay
from autowarm.logs.log import Log

STEPS, WARMUP, PEAK = 60, 20, 1e-2


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.linear(x)[:, 0] - labels).square().mean()}


DATA = [{"x": x, "labels": x.sum()} for x in torch.randn(64, 4, generator=torch.Generator().manual_seed(0))]


@pytest.mark.parametrize("every", [1, 5])
def test_transformers(every: int, tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        str(tmp_path), max_steps=STEPS, logging_steps=every, per_device_train_batch_size=8, learning_rate=PEAK,
        warmup_steps=WARMUP, report_to=[], use_cpu=True, save_steps=STEPS, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(Model(), arguments, train_dataset=DATA)  # type: ignore[arg-type]
    trainer.train()
    [log] = read(tmp_path)  # the history in checkpoint-60
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert log.losses[-len(logged) :].tolist() == logged
    assert log.averaged
    assert_is_the_run(log, every)


def test_lightning_in_csv_and_in_tensorboards_events(tmp_path: Path) -> None:
    import lightning
    from lightning.pytorch.callbacks import LearningRateMonitor
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            loss = self.model(batch, batch.sum(1))["loss"]
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> dict:
            optimizer = torch.optim.AdamW(self.parameters(), lr=PEAK)
            ramp = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda made: min(1.0, (made + 1) / WARMUP))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": ramp, "interval": "step"}}

    trainer = lightning.Trainer(
        max_steps=STEPS, accelerator="cpu", log_every_n_steps=5, callbacks=[LearningRateMonitor()],
        logger=[CSVLogger(tmp_path, "csv"), TensorBoardLogger(tmp_path, "board")], enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(STEPS * 8, 4), batch_size=8))
    [table], [events] = read(tmp_path / "csv" / "version_0"), read(tmp_path / "board")
    for log in (table, events):
        assert_is_the_run(log, 5)
    assert table.updates.tolist() == events.updates.tolist() == [1, *range(5, STEPS + 1, 5)]
    assert events.losses == pytest.approx(table.losses, rel=1e-6)  # events keep single precision


def assert_is_the_run(log: Log, every: int) -> None:
    assert log.total_steps == STEPS
    assert log.rates is not None
    assert log.rates.max() == pytest.approx(PEAK, rel=0.06)  # transformers logs the last rate below the peak
    assert abs(log.used_warmup - WARMUP) <= 1  # type: ignore[operator]
    assert log.interpolated == (every > 1)
    assert replay(log).closed_loop is not None


def test_a_writer_of_torchs_with_a_resume_and_several_runs(tmp_path: Path) -> None:
    for run, first in (("blue", 4.0), ("red", 8.0)):
        for steps in (range(1, 41), range(21, 61)):  # the second process resumes from update 20
            resumed = {"purge_step": steps[0]} if steps[0] > 1 else {}
            with SummaryWriter(str(tmp_path / run), filename_suffix=f".{steps[0]}", **resumed) as writer:
                for step in steps:
                    writer.add_scalar("Loss/train", first + (steps[0] > 1) - step / 100, step)
                    writer.add_scalar("Loss/validation", 1.0, step)
                    writer.add_scalar("lr", PEAK * min(1.0, step / WARMUP), step)
    blue, red = read(tmp_path)
    assert [Path(log.name).name for log in (blue, red)] == ["blue", "red"]
    steps = np.arange(1, 61)
    assert blue.updates.tolist() == steps.tolist()
    assert blue.losses == pytest.approx(4.0 + (steps > 20) - steps / 100)
    assert (red.used_warmup, red.losses[0]) == (WARMUP, pytest.approx(7.99))
    assert any("resumed at step 21" in note for note in blue.notes)
    [file, _] = sorted((tmp_path / "blue").iterdir())
    assert read(file)[0].total_steps == 40


def test_the_labs_own_metrics(tmp_path: Path) -> None:
    from autowarm.lab.config import RunConfig
    from autowarm.lab.tasks import Task
    from autowarm.lab.training.metrics import MetricsLog, Progress

    writer = MetricsLog(tmp_path, 0, "id", Task(None, RunConfig(task="mlp"), "mlp"), quiet=False)
    for step in range(1, 101):
        loss = float("nan") if step == 7 else 4.0 - step / 100
        writer.write(Progress(step=step, loss=loss, lr=PEAK * min(1.0, step / WARMUP)), {}, {}, {})
    writer.close()
    [log] = read(tmp_path)  # metrics.jsonl before the events
    [events] = read(next(tmp_path.glob("*tfevents*")))
    for one in (log, events):
        assert (one.total_steps, one.used_warmup) == (100, WARMUP)
        assert np.flatnonzero(~np.isfinite(one.losses)).tolist() == [6]
