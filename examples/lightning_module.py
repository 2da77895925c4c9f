"""Lightning: a classifier on made-up data, torch's own Muon beside AdamW, and no warm-up to choose."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autowarm import AdaptiveWarmup
from autowarm.integrations.lightning import WarmupCallback, pl, scheduler_config
from autowarm.optim import Together


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        matrices = [p for p in self.parameters() if p.ndim == 2]
        vectors = [p for p in self.parameters() if p.ndim < 2]
        opt = Together(torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(vectors, lr=1e-2))
        sched = AdaptiveWarmup(opt, self.trainer.estimated_stepping_batches)
        return {"optimizer": opt, "lr_scheduler": scheduler_config(sched)}


if __name__ == "__main__":
    pl.seed_everything(0, verbose=False)
    x = torch.randn(2048, 32)
    y = (x @ torch.randn(32, 10)).argmax(dim=1)
    trainer = pl.Trainer(
        max_epochs=8,
        accelerator="cpu",
        callbacks=[WarmupCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), DataLoader(TensorDataset(x, y), batch_size=128, shuffle=True))
    sched = trainer.lr_scheduler_configs[0].scheduler
    loss = trainer.callback_metrics["train_loss"]
    print(f"warm-up took {sched.warmup_steps} of {sched.total_steps} steps; final loss {loss:.3f}")
