"""Run on two processes, or by itself, and then Lightning starts the second: a whole run and one resumed, by DDP."""

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

from autowarm import AdaptiveWarmup, Muon
from autowarm.integrations.lightning import WarmupCallback, pl, scheduler_config
from autowarm.optim import geometry_of, kappa_of
from tests.programs import leave

warnings.simplefilter("ignore")
torch.set_num_threads(1)
STEPS, LR, FOLDER = 12, 0.02, Path(sys.argv[1])


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        self.rates: list[float] = []
        self.losses: list[float] = []

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        # By number, not from the loader: resumed in the middle of an epoch, Lightning goes on counting but reads anew.
        x = torch.randn(6, 6, generator=torch.Generator().manual_seed(10 * batch_idx + self.global_rank))
        loss = self.net(x).square().mean() + 1
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        opt = Muon.from_model(self.net, lr=LR)
        self.sched = AdaptiveWarmup(opt, STEPS)
        return {"optimizer": opt, "lr_scheduler": scheduler_config(self.sched)}

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])


def fit(resume: str | None = None) -> Module:
    module = Module()
    trainer = pl.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        default_root_dir=FOLDER,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[WarmupCallback(), ModelCheckpoint(FOLDER, filename="{step}", every_n_train_steps=5, save_top_k=-1)],
    )
    trainer.fit(module, DataLoader(torch.zeros(2 * 6 * STEPS), 6), ckpt_path=resume)
    return module


whole, resumed = fit(), fit(str(FOLDER / "step=5.ckpt"))
optimizer = whole.sched.optimizer
result = {
    "rates": whole.rates,
    "resumed": whole.rates[:5] + resumed.rates,
    "losses": whole.losses,
    "kappa": kappa_of(optimizer, geometry_of(optimizer)),
}
leave(FOLDER, result)
