"""What a class answers that is given what it does not take."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from autowarm import AdaptiveWarmup, Lion, Muon, NormSGD, SignSGD
from autowarm.integrations import accelerate, lightning, transformers

from .transformers import test_transformers as for_transformers

NET = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
LENGTHS = ["warmup_steps", "num_warmup_steps", "warmup_ratio", "warmup_iters", "warm_up_epochs", "n_warmup"]


def optimizer() -> Lion:
    return Lion(NET.parameters(), lr=1e-3)


def of_arguments(folder: Path, **given: Any) -> None:
    args = for_transformers.make_args(folder)
    transformers.WarmupTrainer(NET, args, optim="muon", warmup=given).create_optimizer_and_scheduler(9)


def of_accelerate(folder: Path, **given: Any) -> None:
    accelerate.WarmupScheduler(Accelerator(cpu=True), optimizer(), 100, **given)


MAKERS: list[tuple[Callable[..., Any], str]] = [
    (lambda folder, **given: AdaptiveWarmup(optimizer(), 100, **given), "AdaptiveWarmup"),
    (lambda folder, **given: AdaptiveWarmup.paper(optimizer(), 9, target_loss=1.0, **given), "AdaptiveWarmup"),
    (lambda folder, **given: lightning.WarmupCallback(**given), "WarmupCallback"),
    (lambda folder, **given: transformers.WarmupCallback(None, **given), "WarmupCallback"),
    (lambda folder, **given: transformers.WarmupTrainer(NET, optim="muon", **given), "WarmupTrainer"),
    (of_arguments, "AdaptiveWarmup"),
    (of_accelerate, "WarmupScheduler"),
]


@pytest.mark.usefixtures("fresh_accelerate")
def test_a_length_of_the_warm_up(tmp_path: Path) -> None:
    for name, (make, who) in [*((LENGTHS[0], maker) for maker in MAKERS), *((name, MAKERS[0]) for name in LENGTHS)]:
        words = f"^{who} has no {name}: the warm-up sets its own length, and AdaptiveWarmup's max_warmup= limits it$"
        with pytest.raises(TypeError, match=words):
            make(tmp_path, **{name: 10})


@pytest.mark.parametrize("given", [10, "linear", [("decay", "wsd")]])
def test_options_of_the_warm_up_that_are_none(given: Any) -> None:
    with pytest.raises(TypeError, match='takes options of AdaptiveWarmup, such as {"max_warmup": 0.1}, got '):
        transformers.WarmupTrainer(NET, optim="muon", warmup=given)


@pytest.mark.parametrize("cls", [Muon, Lion, SignSGD, NormSGD])
def test_parameters_in_place_of_the_model(cls: Any) -> None:
    for given in (NET.parameters(), [*NET.parameters()], NET.named_parameters(), NET.state_dict(), NET[0].weight, Muon):
        with pytest.raises(TypeError, match="^pass the model, not its parameters: a torch.nn.Module is needed, got a "):
            cls.from_model(given, lr=1e-3)


@pytest.mark.parametrize("cls", [Muon, Lion, SignSGD, NormSGD])
@pytest.mark.parametrize("text", ["1e-3", "0.1", "1E-4", "nan"])
def test_numbers_that_are_text(cls: Any, text: str) -> None:
    for make in (cls.from_model, lambda model, **given: cls([p for p in model.parameters() if p.ndim == 2], **given)):
        for name in ("lr", "weight_decay"):
            with pytest.raises(ValueError, match=f"{name}='{text}' is text: YAML reads 1e-3 as a string"):
                make(NET, **{name: text})
    with pytest.raises(ValueError, match="is text: YAML reads 1e-3 as a string"):
        cls([{"params": [nn.Parameter(torch.ones(2, 2))], "lr": text}], lr=0.1)


def test_other_text_keeps_its_own_words() -> None:
    with pytest.raises(ValueError, match="lr must be positive and finite, got 'fast'"):
        Lion(NET.parameters(), lr="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"adamw_betas=.*is text"):
        Muon.from_model(NET, adamw_betas=("0.9", "0.99"))


def test_the_signature_stays() -> None:
    assert [*inspect.signature(AdaptiveWarmup).parameters][:2] == ["optimizer", "total_steps"]
