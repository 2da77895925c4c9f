"""A search for hyper-parameters trains each trial with the values that it tries."""

import warnings
from pathlib import Path
from typing import Any

import optuna

from autowarm.integrations.transformers import WarmupTrainer

from . import test_transformers as for_transformers

TRIED: dict[str, list[Any]] = {
    "learning_rate": [3e-3, 1e-2, 4e-2], "weight_decay": [0.0, 0.1, 0.3], "warmup_steps": [3, 5],
    "lr_scheduler_type": ["cosine", "constant"],
}  # fmt: skip


class Kept(WarmupTrainer):
    """Keeps what each trial trained with."""

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        scheduler = super().create_scheduler(*args, **kwargs)
        vars(self).setdefault("kept", []).append(scheduler)
        return scheduler


def test_optuna(tmp_path: Path) -> None:
    """And a setting that is tried but not used is said to be, once."""
    args = for_transformers.make_args(tmp_path, max_steps=2, save_strategy="no")
    data = for_transformers.make_data(2 * for_transformers.BATCH)
    make = for_transformers.make_model
    trainer = Kept(args=args, model_init=make, optim="muon", train_dataset=data, eval_dataset=data[:4])
    tried = []

    def space(trial: optuna.Trial) -> dict[str, Any]:
        found = {name: trial.suggest_categorical(name, values) for name, values in TRIED.items()}
        tried.append((found["learning_rate"], found["weight_decay"]))
        return found

    grid = optuna.samplers.GridSampler(TRIED, seed=1)
    with warnings.catch_warnings(record=True, action="always") as caught:
        trainer.hyperparameter_search(hp_space=space, n_trials=6, backend="optuna", sampler=grid)
    groups = [scheduler.optimizer.param_groups for scheduler in trainer.kept]
    assert [scheduler.base_lrs[0] for scheduler in trainer.kept] == [lr for lr, _ in tried]
    assert [(made[0]["initial_lr"], max(group["weight_decay"] for group in made)) for made in groups] == tried
    assert len({lr for lr, _ in tried}) > 1 < len({decay for _, decay in tried})
    assert all(scheduler.last_epoch == 2 for scheduler in trainer.kept)
    for name in ("warmup_steps", "lr_scheduler_type"):
        assert sum(f"{name}=" in str(one.message) and "is not used" in str(one.message) for one in caught) == 1
    made = trainer.create_optimizer()
    trainer.args.learning_rate = 1.0
    assert trainer.create_optimizer() is made  # which is there
