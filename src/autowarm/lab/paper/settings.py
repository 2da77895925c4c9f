"""The paper's settings as data: each value with the table, section, figure or script that it comes from.

A preset of paper scale is held to these: `deviations` lists where a run differs, and is empty for the presets, but for
what a sweep varies. What neither the paper nor the authors' scripts fix, such as how often a run is evaluated, has no
row here and is ours.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..config import RunConfig

__all__ = ["ASSUMPTION", "MAIN", "SWIN", "Deviation", "Setting", "deviations", "rows"]

_MODEL, _MAIN = "Table model_arch", "Table main_hyperparams"
_SMOOTH, _SWIN = "Table assumption_hyperparams", "Table swin_hyperparams"
_SCRIPTS = "authors' scripts"


@dataclass(frozen=True)
class Setting:
    """One value of the paper's."""

    key: str  # of `RunConfig`, dotted
    value: Any
    origin: str  # where it stands
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # what other keys of its runs may be


@dataclass(frozen=True)
class Deviation:
    """A value of a run that is not the paper's."""

    setting: Setting
    ours: Any

    def __str__(self) -> str:
        return f"{self.setting.key} {self.ours} instead of {self.setting.value} ({self.setting.origin})"


def _of(name: str | tuple[str, ...], **more: Any) -> dict[str, tuple[Any, ...]]:
    keys = {"optimizer.name": name, **{key.replace("__", "."): value for key, value in more.items()}}
    return {key: value if isinstance(value, tuple) else (value,) for key, value in keys.items()}


_PAPER = {"schedule.kind": ("paper",)}
_STARTS_LOW = ("paper", "linear")  # the kinds of schedule whose first rate is lr/div
_LLAMA = (
    Setting("model.width", 768, _MODEL),
    Setting("model.heads", 12, _MODEL),
    Setting("model.vocab_size", 50304, f"{_SCRIPTS} (50257 in {_MODEL}, padded to a multiple of 64)"),
    Setting("model.ff", 2048, _SCRIPTS),
    Setting("model.init_scale", 0.554, f"{_SCRIPTS} (a standard deviation of 0.02)"),
    Setting("data.corpus", "data/fineweb", f"FineWeb: {_MAIN}"),
)
_COMMON = (
    Setting("model.seq_len", 512, _MAIN),
    Setting("clip", 0.5, _MAIN),
    Setting("optimizer.weight_decay", 0.1, _MAIN),
    Setting("schedule.decay", "cosine", _MAIN),
)
_FSTAR = {"muon": (3.3, 3.2), "lion": (3.4, 3.3), "normsgd": (4.3, 4.1)}
_STEPS = {32: (64_000, 128_000), 256: (8_000, 16_000)}  # 1B and 2.1B tokens

# Figures warmup-sweep-124M, warmup-sweep-210M and ablations: 12 layers, or 24 (Table model_arch).
MAIN: Sequence[Setting] = (
    *_LLAMA,
    *_COMMON,
    Setting("optimizer.lr", 1e-3, _MAIN, _of("muon", batch_size=32)),
    Setting("optimizer.lr", 2e-3, _MAIN, _of("muon", batch_size=256, model__layers=12)),
    Setting("optimizer.lr", 3e-3, _MAIN, _of("muon", batch_size=256, model__layers=24)),
    Setting("optimizer.options.adamw_betas", [0.8, 0.999], f"{_MAIN} (Muon's β1); β2: {_SCRIPTS}", _of("muon")),
    Setting("optimizer.options.method", "newton-schulz", "App. optimizers", _of("muon")),
    Setting("optimizer.options.momentum", 0.95, _SCRIPTS, _of("muon", batch_size=32, model__layers=12)),
    Setting("optimizer.options.momentum", 0.9, _SCRIPTS, _of("muon", batch_size=256, model__layers=12)),
    Setting("optimizer.options.momentum", 0.9, _SCRIPTS, _of("muon", model__layers=24)),
    Setting("optimizer.lr", 1e-3, _MAIN, _of("lion")),
    Setting("optimizer.options.betas", [0.9, 0.99], _MAIN, _of("lion")),
    Setting("optimizer.lr", 1e-2, f"{_MAIN} (bold)", _of("normsgd")),
    Setting("optimizer.options.momentum", 0.95, f"{_MAIN} (bold)", _of("normsgd")),
    Setting("schedule.div", 100.0, _MAIN, _of(("muon", "lion"), schedule__kind=_STARTS_LOW)),
    Setting("schedule.div", 2.0, f"{_MAIN} (bold)", _of("normsgd", batch_size=32, schedule__kind=_STARTS_LOW)),
    Setting("schedule.div", 5.0, f"{_MAIN} (bold)", _of("normsgd", batch_size=256, schedule__kind=_STARTS_LOW)),
    Setting("schedule.sigma_f2", 1e3, _MAIN, _PAPER),
    *(
        Setting("schedule.target_loss", fstar, f"{_MAIN} ({tokens})",
                _of(name, steps=tuple(steps[i] for steps in _STEPS.values()), **{"schedule__kind": "paper"}))
        for name, pair in _FSTAR.items()
        for i, (fstar, tokens) in enumerate(zip(pair, ("1B tokens", "2.1B tokens"), strict=True))
    ),
)  # fmt: skip

# Figures smoothness-lion and lips-muon-norm.
ASSUMPTION: Sequence[Setting] = (
    *_LLAMA,
    Setting("model.layers", 12, "Sec. exp (the model of the main runs)"),
    *(dataclasses.replace(setting, origin=_SMOOTH) for setting in _COMMON),
    Setting("batch_size", 64, _SMOOTH),
    Setting("engine.accumulate", 1, _SMOOTH),
    Setting("schedule.warmup_steps", 1000, _SMOOTH),
    Setting("schedule.div", 100.0, _SMOOTH),
    Setting("optimizer.lr", 1e-4, f"{_SMOOTH} (signSGD there, Lion in the figure)", _of(("lion", "signsgd"))),
    Setting("optimizer.lr", 1e-4, _SMOOTH, _of("muon")),
    Setting("optimizer.lr", 1e-3, _SMOOTH, _of("normsgd")),
    Setting("optimizer.options.momentum", 0.9, _SMOOTH, _of(("signsgd", "muon", "normsgd"))),
    Setting("optimizer.options.method", "newton-schulz", "App. optimizers", _of("muon")),
    Setting("steps", 10_000, _SMOOTH, _of(("lion", "signsgd", "normsgd"))),
    Setting("steps", 15_000, _SMOOTH, _of("muon")),
)

# Figure swin. The table names no clipping, so there is none.
SWIN: Sequence[Setting] = (
    Setting("model.name", "swin_base_patch4_window7_224", _SWIN),
    Setting("data.images", "hfds/ILSVRC/imagenet-1k", _SWIN),
    Setting("optimizer.name", "muon", _SWIN),
    Setting("batch_size", 128, _SWIN),
    Setting("steps", 50_000, _SWIN),
    Setting("clip", 0.0, f"{_SWIN} (names none)"),
    Setting("optimizer.lr", 1e-3, f"{_SWIN} (bold)"),
    Setting("optimizer.weight_decay", 0.1, _SWIN),
    Setting("schedule.decay", "cosine", _SWIN),
    Setting("schedule.target_loss", 0.4, _SWIN, _PAPER),
    Setting("schedule.sigma_f2", 1e3, f"{_SWIN} (quotes the reciprocal, 10⁻³)", _PAPER),
)


def deviations(run: RunConfig, settings: Sequence[Setting]) -> list[Deviation]:
    """List where a run differs from the paper's settings that belong to it.

    Example:
        >>> from autowarm.lab.config import ModelConfig, RunConfig
        >>> run = RunConfig(model=ModelConfig(width=512, heads=8), clip=0.5)
        >>> [str(found) for found in deviations(run, MAIN) if found.setting.key == "model.width"]
        ['model.width 512 instead of 768 (Table model_arch)']
    """
    values = dataclasses.asdict(run)
    if run.schedule.kind == "paper" and run.schedule.div is None:
        values["schedule"]["div"] = 100.0  # the default of `AdaptiveWarmup.paper`
    return [
        Deviation(setting, _at(values, setting.key))
        for setting in settings
        if all(_at(values, key) in wanted for key, wanted in setting.when.items())
        and _at(values, setting.key) != setting.value
    ]


def rows() -> list[list[str]]:
    """Return a row for each setting, as the documentation prints them: runs, key, value, origin."""
    named = {"main": MAIN, "assumption": ASSUMPTION, "swin": SWIN}
    return [
        [name, ", ".join(f"{key.split('.')[-1]} {_text(value)}" for key, value in setting.when.items()) or "all",
         setting.key, _text(setting.value), setting.origin]
        for name, settings in named.items()
        for setting in settings
    ]  # fmt: skip


def _at(values: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        values = values.get(part, {})
    return None if values == {} else values


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " or ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
