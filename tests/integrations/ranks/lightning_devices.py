"""Run on two processes: a whole run and one resumed, by DDP."""

import sys
import warnings
from pathlib import Path

import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from autowarm.integrations.lightning import WarmupCallback
from tests.integrations.test_lightning import Module, fit
from tests.programs import leave

warnings.simplefilter("ignore")
torch.set_num_threads(1)
FOLDER = Path(sys.argv[1])


class Ranked(Module):
    """Each rank has losses of its own."""

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        seed = 1000 * self.current_epoch + 10 * batch_idx + self.global_rank
        loss = self.net(torch.randn(6, 6, generator=torch.Generator().manual_seed(seed))).square().mean() + 1
        self.losses.append(loss.item())
        return loss


def trained(resume: Path | None = None) -> Ranked:
    every = ModelCheckpoint(FOLDER, filename="{step}", every_n_train_steps=5, save_top_k=-1)
    fit(module := Ranked(), FOLDER, WarmupCallback(), every, resume=resume, devices=2, strategy="ddp")
    return module


whole, resumed = trained(), trained(FOLDER / "step=5.ckpt")
leave(FOLDER, {"rates": whole.rates, "resumed": whole.rates[:5] + resumed.rates, "losses": whole.losses,
               "kappa": whole.sched._settings["kappa"]})  # fmt: skip
