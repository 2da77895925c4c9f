"""Configs as frozen dataclasses, and how YAML and command lines become configs. Imports no torch.

- `runs`: one run.
- `plans`: many runs: a comparison, a sweep, figures.
- `build`: makes a config from YAML, presets and command-line words.
"""

from ..errors import LabError, UsageError, differences, nearest, printable, require
from .plans import CompareConfig, FigureConfig, Plan, Point, SweepConfig, Where
from .runs import (
    LLAMA_124M,
    LLAMA_210M,
    DataConfig,
    EngineConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
)

__all__ = [
    "LLAMA_124M", "LLAMA_210M", "CompareConfig", "DataConfig", "EngineConfig", "FigureConfig",
    "LabError", "ModelConfig", "OptimizerConfig", "Plan", "Point", "RunConfig", "ScheduleConfig",
    "SweepConfig", "UsageError", "Where", "differences", "nearest", "printable", "require",
]  # fmt: skip
