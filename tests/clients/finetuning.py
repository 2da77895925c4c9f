"""Lightning's BackboneFinetuning: the head first, the backbone's parameters as a new group some epochs later.

``finetuning.py FOLDER EPOCHS [CHECKPOINT]``
"""

import sys
from pathlib import Path
from typing import Any

import torch
from client import Record
from lightning.pytorch.callbacks import BackboneFinetuning, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from autowarm import AdaptiveWarmup, Lion
from autowarm.integrations.lightning import WarmupCallback, pl, scheduler_config

WIDTH, CLASSES, BATCH, UNFREEZE_AT = 32, 5, 32, 2


class Finetuning(BackboneFinetuning):
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Thaw what a resumed run trains: Lightning 2.6 leaves it frozen."""
        super().on_fit_start(trainer, pl_module)
        for group in trainer.optimizers[0].param_groups:
            for p in group["params"]:
                p.requires_grad_(True)


class Classifier(pl.LightningModule):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, CLASSES))
        self.record = Record(folder)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.head(self.backbone(x)), y)
        self.lr = self.optimizers().param_groups[0]["lr"]
        self.log("train_loss", loss)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.record.update(self.global_step, self.lr, outputs["loss"].item())

    def configure_optimizers(self) -> dict[str, Any]:
        opt = Lion(self.head.parameters(), lr=1e-2)
        sched = AdaptiveWarmup(opt, self.trainer.estimated_stepping_batches)
        return {"optimizer": opt, "lr_scheduler": scheduler_config(sched)}


def main(folder: Path, epochs: int, checkpoint: str | None = None) -> None:
    pl.seed_everything(0, verbose=False)
    x = torch.randn(320, 16)
    y = (x @ torch.randn(16, CLASSES)).argmax(dim=1)
    module = Classifier(folder)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=folder,
        logger=TensorBoardLogger(folder, "events", ""),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            Finetuning(UNFREEZE_AT, backbone_initial_lr=5e-3),
            WarmupCallback(),
            ModelCheckpoint(folder, filename="last", enable_version_counter=False),
        ],
    )
    loader = DataLoader(TensorDataset(x, y), BATCH, shuffle=False)
    trainer.fit(module, loader, ckpt_path=checkpoint)
    module.record.finish(module, trainer.lr_scheduler_configs[0].scheduler)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
