"""Optimizers of one layer each, as transformers builds them for GaLore: each follows the schedule."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, trainer_optimizer

from autowarm import AdaptiveWarmup
from autowarm.integrations.transformers import WarmupCallback, WarmupTrainer
from autowarm.optim import Together

from . import test_transformers as for_transformers

STEPS, LR = for_transformers.STEPS, for_transformers.LR


class GaLoreAdamW(torch.optim.AdamW):
    """Stands in for galore_torch's, which is not on every platform: the low rank does not matter here."""

    def __init__(self, groups: Any, **options: Any) -> None:
        groups = [{name: x for name, x in one.items() if name in ("params", "rank")} for one in groups]
        super().__init__(groups, **options)
        self.rates: list[float] = []

    def step(self, closure: Any = None) -> None:
        self.rates.append(self.param_groups[0]["lr"])
        super().step()


@pytest.fixture
def galore(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("galore_torch")
    for name in ("GaLoreAdafactor", "GaLoreAdamW", "GaLoreAdamW8bit"):
        setattr(package, name, GaLoreAdamW)
    monkeypatch.setitem(sys.modules, "galore_torch", package)
    monkeypatch.setattr(trainer_optimizer, "is_galore_torch_available", lambda: True)


def make(kind: type, folder: Path, layerwise: bool = True) -> Any:
    args = for_transformers.make_args(
        folder, optim="galore_adamw_layerwise" if layerwise else "galore_adamw", optim_target_modules=["mlp"]
    )
    args.save_strategy = "no"
    data = for_transformers.make_data(STEPS * for_transformers.BATCH)
    return kind(for_transformers.make_model(), args, train_dataset=data)


class GivenOne(Trainer):
    """A plain Trainer, whose schedule is made over its dummy optimizer."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        self.lr_scheduler = AdaptiveWarmup(self.optimizer, num_training_steps)
        self.add_callback(WarmupCallback(self))
        return self.lr_scheduler


@pytest.mark.usefixtures("galore")
@pytest.mark.parametrize("kind", [WarmupTrainer, GivenOne])
def test_each_layer_follows_the_schedule_as_all_in_one_optimizer_do(kind: type, tmp_path: Path) -> None:
    trainer, together = make(kind, tmp_path), make(WarmupTrainer, tmp_path, layerwise=False)
    trainer.train()
    together.train()
    sched = trainer.lr_scheduler
    assert sched.last_epoch == STEPS
    assert isinstance(sched.optimizer, Together)
    layers = sched.optimizer.optimizers
    assert len(layers) == len([*trainer.model.parameters()])
    (rates,) = {tuple(one.rates) for one in layers}
    assert rates == tuple(for_transformers.logged(trainer, "learning_rate"))
    assert rates[0] == pytest.approx(LR / 10)
    assert max(rates) > 0.8 * LR
    assert rates[-1] < 0.2 * LR
    assert rates == pytest.approx(for_transformers.logged(together, "learning_rate"), rel=1e-4)
