"""Lightning: AdamW on a deep network, and no warm-up to choose."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autowarm import AdaptiveWarmup
from autowarm.integrations.lightning import WarmupCallback, pl, scheduler_config


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        hidden = [layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.ReLU())]
        self.net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), *hidden, nn.Linear(128, 10))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=3e-3)
        sched = AdaptiveWarmup(opt, self.trainer.estimated_stepping_batches)
        return {"optimizer": opt, "lr_scheduler": scheduler_config(sched)}


if __name__ == "__main__":
    pl.seed_everything(0, verbose=False)
    teacher = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10))  # whose classes the network learns
    x = torch.randn(128_000, 32)
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[WarmupCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), DataLoader(TensorDataset(x, teacher(x).argmax(1)), batch_size=128, shuffle=True))
    sched = trainer.lr_scheduler_configs[0].scheduler
    loss = trainer.callback_metrics["train_loss"]
    print(f"warm-up took {sched.warmup_steps} of {sched.total_steps} steps; final loss {loss:.3f}")
