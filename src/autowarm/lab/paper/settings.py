"""The paper's settings, from settings.csv: each value with the table, section, figure or script that it comes from.

A preset of paper scale is held to these: `deviations` lists where a run differs, and is empty for the presets, but for
what a sweep varies. What neither the paper nor the authors' scripts fix, such as how often a run is evaluated, has no
row here and is ours.
"""

import csv
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import RunConfig
from ..config.yaml_files import load_yaml


@dataclass(frozen=True)
class Setting:
    """One value of the paper's."""

    key: str  # of `RunConfig`, dotted
    value: Any
    origin: str  # where it stands
    when: Mapping[str, tuple[Any, ...]]  # what other keys of its runs may be


@dataclass(frozen=True)
class Deviation:
    """A value of a run that is not the paper's."""

    setting: Setting
    ours: Any

    def __str__(self) -> str:
        return f"{self.setting.key} {self.ours} instead of {self.setting.value} ({self.setting.origin})"


def _settings(runs: str) -> Sequence[Setting]:
    """Read the rows of these runs, which `docs/paper.md` prints."""
    with Path(__file__).with_name("settings.csv").open(encoding="utf-8", newline="") as file:
        return [
            Setting(row["key"], load_yaml(row["value"]), row["where it stands"], _when(row["of which"]))
            for row in csv.DictReader(file)
            if row["runs"] == runs
        ]


def _when(text: str) -> dict[str, tuple[Any, ...]]:
    """Read the conditions "optimizer.name muon or lion, batch_size 32"; "all" sets none."""
    parts = (part.split(" ", 1) for part in text.split(", ") if part != "all")
    return {key: tuple(map(load_yaml, values.split(" or "))) for key, values in parts}


MAIN = _settings("main")  # figures warmup-sweep-124M, warmup-sweep-210M and ablations: 12 layers, or 24
ASSUMPTION = _settings("assumption")  # figures smoothness-lion and lips-muon-norm
SWIN = _settings("swin")  # figure swin


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


def _at(values: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        values = values.get(part, {})
    return None if values == {} else values
