"""What is to be run: frozen dataclasses, and the YAML and command lines they are made from. Imports no torch.

- `runs`: one run.
- `plans`: many runs: a comparison, a sweep, a measurement of curvature; a range test.
- `build`: YAML, presets and words of a command → a config.
- `errors`: what the user can put right, in one line.
"""

from .errors import LabError, UsageError, differences, nearest, printable, require
from .plans import CompareConfig, EngineName, FigureConfig, FindRateConfig, Point, SmoothnessConfig, SweepConfig
from .runs import (
    LLAMA_124M,
    LLAMA_210M,
    OPTIMIZERS,
    DataConfig,
    EngineConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
)

__all__ = [
    "LLAMA_124M",
    "LLAMA_210M",
    "OPTIMIZERS",
    "CompareConfig",
    "DataConfig",
    "EngineConfig",
    "EngineName",
    "FigureConfig",
    "FindRateConfig",
    "LabError",
    "ModelConfig",
    "OptimizerConfig",
    "Point",
    "RunConfig",
    "ScheduleConfig",
    "SmoothnessConfig",
    "SweepConfig",
    "UsageError",
    "differences",
    "nearest",
    "printable",
    "require",
]
