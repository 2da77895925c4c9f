"""Lightning trains as a plain loop with the same losses would, to the bit."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging
from torch import nn
from torch.utils.data import DataLoader

from autowarm import AdaptiveWarmup, Lion
from autowarm.integrations.lightning import WarmupCallback, pl, scheduler_config
from autowarm.optim import Together

from .plain import train

STEPS, LR, EPOCH = 12, 0.02, 12


def micro_loss(net: nn.Module, epoch: int, batch: int) -> torch.Tensor:
    # By number, not from the loader: resumed in the middle of an epoch, Lightning goes on counting but reads anew.
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(100 * epoch + batch))
    return net(x).square().mean() + 1


def make_parts() -> tuple[nn.Module, Together]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    matrices, vectors = ([p for p in net.parameters() if (p.ndim == 2) is want] for want in (True, False))
    return net, Together(torch.optim.Muon(matrices, lr=LR), torch.optim.AdamW(vectors, lr=LR))


class Module(pl.LightningModule):
    """Its schedule is planned over the run, unless another number of updates is given."""

    def __init__(self, plan: int | str | None = "run", **options: Any) -> None:
        super().__init__()
        self.net, self.opt = make_parts()
        self.plan, self.options = plan, options
        self.rates: list[float] = []
        self.losses: list[float] = []

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = micro_loss(self.net, self.current_epoch, batch_idx)
        self.log("train_loss", loss)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        plan = self.trainer.estimated_stepping_batches if self.plan == "run" else self.plan
        self.sched = AdaptiveWarmup(self.opt, plan, **self.options)
        return {"optimizer": self.opt, "lr_scheduler": scheduler_config(self.sched)}

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])


QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


def fit(module: pl.LightningModule, folder: Path, *callbacks: Any, resume: Path | None = None, **options: Any) -> None:
    options = {**QUIET, "enable_checkpointing": True, "accelerator": "cpu", "max_steps": STEPS} | options
    trainer = pl.Trainer(default_root_dir=folder, callbacks=list(callbacks), **options)
    trainer.fit(module, DataLoader(torch.zeros(6 * EPOCH), 6), ckpt_path=resume)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_rates_and_weights_are_a_plain_loops(accumulation: int, tmp_path: Path) -> None:
    net, opt = make_parts()
    rates = train(net, opt, lambda net, i: micro_loss(net, *divmod(i, EPOCH)), accumulation, lambda i: 6)
    every = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    module, options = Module(), {"accumulate_grad_batches": accumulation}
    fit(module, tmp_path, WarmupCallback(), every, **options)
    assert module.rates == rates
    assert all(torch.equal(a, b) for a, b in zip(module.net.parameters(), net.parameters(), strict=True))

    # Resumed in warm-up and in decay, in the middle of an epoch.
    for at in (2, 7):
        resumed = Module()
        fit(resumed, tmp_path, WarmupCallback(), resume=tmp_path / f"step={at}.ckpt", **options)
        assert resumed.rates == rates[at:]
        assert all(torch.equal(a, b) for a, b in zip(resumed.net.parameters(), net.parameters(), strict=True))


def test_weights_are_averaged_at_a_rate_of_their_own(tmp_path: Path) -> None:
    averaging = StochasticWeightAveraging(swa_lrs=0.5 * LR, swa_epoch_start=1, annealing_epochs=2)
    options = {"max_steps": -1, "max_epochs": 6, "limit_train_batches": 2}
    fit(module := Module(), tmp_path, averaging, WarmupCallback(), **options)
    assert module.rates[-1] == 0.5 * LR


def test_weights_and_scalers() -> None:
    """What Lightning does to a loss before it reaches the callback is undone."""
    opt = Lion([nn.Parameter(torch.zeros(2, 2))], lr=LR)
    sched = AdaptiveWarmup(opt, 10)
    seen: list[tuple[float, float]] = []
    sched.observe = lambda loss, weight: seen.append((float(loss), weight))
    trainer = SimpleNamespace(
        lr_scheduler_configs=[SimpleNamespace(scheduler=sched)],
        accumulate_grad_batches=4,
        global_step=0,
        precision_plugin=SimpleNamespace(scaler=torch.amp.GradScaler("cpu", init_scale=1024.0)),
    )
    trainer.precision_plugin.scaler.scale(torch.ones(()))
    callback = WarmupCallback(weight=lambda batch: batch["tokens"])  # of a batch whose samples cannot be counted
    callback.on_train_batch_start(trainer, None, {"tokens": 7}, 0)
    callback.on_before_backward(trainer, None, torch.tensor(3.0) * 1024 / 4)
    assert seen == [(3.0, 7.0)]


def test_misuse(tmp_path: Path) -> None:
    class EachEpoch(Module):
        def configure_optimizers(self) -> Any:
            return super().configure_optimizers() | {"lr_scheduler": self.sched}

    with pytest.raises(ValueError, match="got interval='epoch', frequency=1, reduce_on_plateau=False: return"):
        fit(EachEpoch(), tmp_path, WarmupCallback(), enable_checkpointing=False)

    class Without(Module):
        def configure_optimizers(self) -> Any:
            return self.opt

    with pytest.raises(ValueError, match="found no AdaptiveWarmup"):
        fit(Without(), tmp_path, WarmupCallback(), enable_checkpointing=False)
    manual = Module()
    manual.automatic_optimization = False
    with pytest.raises(ValueError, match=r"with manual optimization leave out WarmupCallback: call observe"):
        fit(manual, tmp_path, WarmupCallback(), enable_checkpointing=False)
