"""``recover=True`` in each trainer: one argument, a batch of NaNs no longer kills AdamW, and the log shows it."""

import math
import warnings
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from lightning.pytorch import Trainer
from torch import nn
from torch.utils.data import DataLoader

from autowarm import AdaptiveWarmup
from autowarm.integrations.accelerate import WarmupScheduler
from autowarm.integrations.lightning import WarmupCallback
from autowarm.integrations.transformers import WarmupTrainer

from .plain import accelerated
from .test_lightning import QUIET, Around
from .test_transformers import BATCH, InOrder, make_args

STEPS, LR = 100, 0.01
DATA = torch.randn(STEPS * BATCH, 8, generator=torch.Generator().manual_seed(0))
DATA[60 * BATCH : 61 * BATCH] = math.nan


class Ordered(InOrder, WarmupTrainer):
    pass


class Net(nn.Linear):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return {"loss": (super().forward(x) - x[:, :4] - 1).square().mean()}


def check(scheduler: AdaptiveWarmup, net: nn.Module, logged: list[float]) -> None:
    [found] = scheduler.recoveries
    assert found.restored is not None
    assert found.restored <= 60 < found.update <= 63
    assert all(bool(p.isfinite().all()) for p in net.parameters())
    assert logged == [0.0] * 6 + [1.0] * 4


def test_transformers(tmp_path: Path) -> None:
    options = {"max_steps": STEPS, "learning_rate": LR, "logging_steps": 10, "max_grad_norm": 1.0}
    args = make_args(tmp_path, save_strategy="no", remove_unused_columns=False, **options)
    net = Net()
    trainer = Ordered(net, args, warmup={"recover": True}, train_dataset=[{"x": x} for x in DATA])
    with warnings.catch_warnings(action="ignore"):
        trainer.train()
    check(trainer.lr_scheduler, net, [x["autowarm/recoveries"] for x in trainer.state.log_history if "loss" in x])


def test_accelerate() -> None:
    accelerator = Accelerator(cpu=True)
    net, opt = accelerator.prepare(net := Net(), torch.optim.AdamW(net.parameters(), lr=LR))
    sched = WarmupScheduler(accelerator, opt, STEPS, recover=True, log_every=10)
    logged: list[float] = []
    accelerator.log = lambda values, **_: logged.append(values["autowarm/recoveries"])
    with warnings.catch_warnings(action="ignore"):
        batches = DATA.split(BATCH)
        accelerated(accelerator, net, opt, sched, lambda net, i: net(batches[i])["loss"], range(STEPS))
    check(sched, net, logged)
    accelerator.free_memory()


def test_lightning() -> None:
    logged: list[float] = []

    class Module(Around):
        def on_train_batch_end(self, *_: Any) -> None:  # after the callbacks'
            if self.trainer.global_step % 10 == 0:
                logged.append(float(self.trainer.callback_metrics["autowarm/recoveries"]))

    def make(net: nn.Module) -> AdaptiveWarmup:
        return AdaptiveWarmup(torch.optim.AdamW(net.parameters(), lr=LR), STEPS, recover=True)

    module = Module(Net(), make)
    with warnings.catch_warnings(action="ignore"):
        options = QUIET | {"max_steps": STEPS, "log_every_n_steps": 10, "accelerator": "cpu"}
        Trainer(callbacks=[WarmupCallback()], **options).fit(module, DataLoader(DATA, BATCH))
    check(module.sched, module.net, logged)
