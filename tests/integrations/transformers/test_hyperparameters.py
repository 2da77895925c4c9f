"""A search for hyper-parameters trains each trial with the values that it tries."""

import warnings
from pathlib import Path
from typing import Any

import optuna

from autowarm.integrations.transformers import WarmupTrainer

from . import test_transformers as for_transformers

RATES, DECAYS = [3e-3, 1e-2, 4e-2], [0.0, 0.1, 0.3]


class Kept(WarmupTrainer):
    """Keeps what each trial trained with."""

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        scheduler = super().create_scheduler(*args, **kwargs)
        vars(self).setdefault("kept", []).append(scheduler)
        return scheduler


def make_trainer(folder: Path, optim: str | None = "muon", **options: Any) -> Kept:
    args = for_transformers.make_args(folder, **{"max_steps": 2, "save_strategy": "no"} | options)
    data = for_transformers.make_data(2 * for_transformers.BATCH)
    return Kept(
        args=args, model_init=for_transformers.make_model, optim=optim, train_dataset=data, eval_dataset=data[:4]
    )


def trained_with(trainer: Kept) -> list[tuple[float, float]]:
    """The peak rate and the weight decay of each trial."""
    groups = [scheduler.optimizer.param_groups for scheduler in trainer.kept]
    assert [scheduler.base_lrs[0] for scheduler in trainer.kept] == [made[0]["initial_lr"] for made in groups]
    return [(made[0]["initial_lr"], max(group["weight_decay"] for group in made)) for made in groups]


def test_optuna(tmp_path: Path) -> None:
    trainer, tried = make_trainer(tmp_path), []

    def space(trial: optuna.Trial) -> dict[str, Any]:
        found = {
            "learning_rate": trial.suggest_categorical("learning_rate", RATES),
            "weight_decay": trial.suggest_categorical("weight_decay", DECAYS),
        }
        tried.append((found["learning_rate"], found["weight_decay"]))
        return found

    grid = optuna.samplers.GridSampler({"learning_rate": RATES, "weight_decay": DECAYS}, seed=0)
    trainer.hyperparameter_search(hp_space=space, n_trials=3, backend="optuna", sampler=grid)
    assert trained_with(trainer) == tried
    assert len(set(tried)) == 3
    assert all(scheduler.last_epoch == 2 for scheduler in trainer.kept)


def test_options_of_the_optimizer_are_read_anew(tmp_path: Path) -> None:
    trainer, momenta = make_trainer(tmp_path), []
    for momentum in (0.8, 0.9):
        trainer.args.optim_args = f"momentum={momentum}"
        trainer.train()
        momenta.append(trainer.kept[-1].optimizer.param_groups[0]["momentum"])
    assert momenta == [0.8, 0.9]


def test_an_optimizer_that_is_there_stays(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    made = trainer.create_optimizer()
    trainer.args.learning_rate = 2 * for_transformers.LR
    assert trainer.create_optimizer() is made


def test_a_search_over_settings_that_are_not_used_is_told_so_once(tmp_path: Path) -> None:
    trainer, tried = make_trainer(tmp_path), {"warmup_steps": [3, 5], "lr_scheduler_type": ["cosine", "constant"]}
    with warnings.catch_warnings(record=True, action="always") as caught:
        trainer.hyperparameter_search(
            hp_space=lambda trial: {name: trial.suggest_categorical(name, values) for name, values in tried.items()},
            n_trials=2,
            backend="optuna",
            sampler=optuna.samplers.GridSampler(tried, seed=0),
        )
    for name in tried:
        assert sum(f"{name}=" in str(one.message) and "is not used" in str(one.message) for one in caught) == 1
