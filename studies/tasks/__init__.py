"""The studies' tasks, which the lab's runs train as tasks of our own: two of the lab's and 21 more.

- `small`: language, images, a linear network.      - `finetuning`: from trained weights.
- `fresh`: unlike all others, for rules that were chosen without them.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from autowarm.lab.config import RunConfig
from autowarm.lab.tasks import Batch, Task
from autowarm.lab.tasks.recipes import Recipe

from . import finetuning, fresh, small

TASKS: dict[str, Recipe] = small.TASKS | finetuning.TASKS | fresh.TASKS


@dataclass(frozen=True)
class StudyTask:
    """A task by its name. Workers unpickle it by importing `studies` from the folder in which the command was given.

    It is an `autowarm.lab.tasks.Source`.
    """

    name: str

    @property
    def key(self) -> str:
        """The value of `RunConfig.task`."""
        return f"{self.name}@studies"

    @property
    def sha256(self) -> str:
        """Hash of the tasks' code, which a run's id covers beside the lab's."""
        return _sha256()

    @property
    def file(self) -> str:
        """The file beside which a mistake in the tasks is looked for."""
        return __file__

    def make(self, config: RunConfig) -> Task:
        """The task in a run."""
        recipe = TASKS[self.name]
        return Task(Compiled(recipe) if config.engine.compile else recipe, config, self.name, self.sha256)


class Compiled:
    """A recipe whose only network in this process serves every run, so that the first run alone compiles it."""

    def __init__(self, recipe: Recipe) -> None:
        self.first_bounds = recipe.first_bounds
        self.batches, self.validation, self.loss = recipe.batches, recipe.validation, recipe.loss
        self._recipe = recipe

    def model(self) -> nn.Module:
        """The network, with new weights."""
        new, model = self._recipe.model(), _network(self._recipe)
        model.load_state_dict(new.state_dict())
        model.zero_grad()
        return model

    def scores(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The recipe's, uncompiled: compiling for a few batches of another shape would not pay."""
        with torch.compiler.set_stance("force_eager"):
            return self._recipe.scores(model, batch)


@cache
def _network(recipe: Recipe) -> nn.Module:
    return recipe.model()


@cache
def _sha256() -> str:
    return hashlib.sha256(
        b"\0".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    ).hexdigest()
