"""The paper's settings, from settings.csv: each value with the table, section, figure or script that it comes from.

The presets are held to these at every scale: `deviations` lists where a run differs, which no preset does but in what a
sweep varies. What neither the paper nor the authors' scripts fix, such as when a run is evaluated, has no row here.
"""

import csv
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import RunConfig
from ..config.build import load_yaml


@dataclass(frozen=True)
class Setting:
    key: str  # of `RunConfig`, dotted
    origin: str  # where it stands
    changed: str  # the scales whose presets have another value on purpose, and which
    value: Any
    when: Mapping[str, tuple[Any, ...]]  # what other keys of its runs may be


def _settings(runs: str) -> Sequence[Setting]:
    """Read the rows of these runs, which `docs/paper.md` prints."""
    with Path(__file__).with_name("settings.csv").open(encoding="utf-8", newline="") as file:
        return [
            Setting(key, where, changed, load_yaml(value), _when(of_which))
            for name, of_which, key, value, where, changed in csv.reader(file)
            if name == runs
        ]


def _when(text: str) -> dict[str, tuple[Any, ...]]:
    """Read the conditions "optimizer.name muon or lion, batch_size 32"; "all" sets none."""
    parts = (part.split(" ", 1) for part in text.split(", ") if part != "all")
    return {key: tuple(map(load_yaml, values.split(" or "))) for key, values in parts}


MAIN = _settings("main")  # figures warmup-sweep-124M, warmup-sweep-210M and ablations: 12 layers, or 24
ASSUMPTION = _settings("assumption")  # figures smoothness-lion and lips-muon-norm
SWIN = _settings("swin")  # figure swin
EVERY = _settings("every")  # of all runs, and of none of their keys
SCRIPTS = _settings("scripts")  # what the authors' scheduler does otherwise than Algorithm 1, and no key sets
# Of the curvature fits, by optimizer: the first and the last step of the points, and how many of them are fitted.
WINDOWS = {one.when["optimizer.name"][0]: one.value for one in _settings("fits")}
# The paper's numbers that smaller ones stand for, by scale and key.
_STANDS_FOR = {(scale, one.key): one.value for one in _settings("stand-ins") for scale in one.when["scale"]}


def deviations(run: RunConfig, settings: Sequence[Setting], scale: str = "paper") -> list[tuple[str, str]]:
    """List where a run differs from the paper's settings that belong to it: the key, and the difference in words.

    ``scale`` is the preset's.
    """
    values = dataclasses.asdict(run)
    if run.schedule.kind == "paper" and run.schedule.div is None:
        values["schedule"]["div"] = 100.0  # the default of `AdaptiveWarmup.paper`
    return [
        (setting.key, f"{setting.key} {_at(values, setting.key)} instead of {setting.value} ({setting.origin})")
        for setting in settings
        if scale not in setting.changed
        and all(
            _STANDS_FOR.get((scale, key), {}).get(value := _at(values, key), value) in wanted
            for key, wanted in setting.when.items()
        )
        and _at(values, setting.key) != setting.value
    ]


def _at(values: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        values = values.get(part, {})
    return None if values == {} else values
