"""The studies' tasks, which the lab's runs train as tasks of our own: two of the lab's and 27 more.

- `small`: language, images, a linear network.      - `finetuning`: from trained weights.
- `fresh`, `unseen`: unlike all others, for rules that were chosen without them.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn

from autowarm.lab.config import RunConfig
from autowarm.lab.tasks import Task
from autowarm.lab.tasks.recipes import Recipe

from . import finetuning, fresh, small, unseen

TASKS: dict[str, Recipe] = small.TASKS | finetuning.TASKS | fresh.TASKS | unseen.TASKS


@dataclass(frozen=True)
class StudyTask:
    """A task by its name. Workers unpickle it by importing `studies` from the folder in which the command was given.

    It is an `autowarm.lab.tasks.Source`, whose hash is that of all the tasks' code.
    """

    name: str
    file = __file__
    attributes = MappingProxyType[str, str]({})
    sha256 = hashlib.sha256(
        b"\0".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    ).hexdigest()

    @property
    def key(self) -> str:
        """The value of `RunConfig.task`."""
        return f"{self.name}@studies"

    def make(self, config: RunConfig) -> Task:
        """The task in a run."""
        recipe = TASKS[self.name]
        return Task(_compiled(recipe) if config.engine.compile else recipe, config, self.name, self.sha256)


@cache
def _compiled(recipe: Recipe) -> Recipe:
    """The recipe with one network in this process, which serves every run, so that the first run alone compiles it."""
    network = cache(recipe.model)

    def model() -> nn.Module:
        new, shared = recipe.model(), network()
        shared.load_state_dict(new.state_dict())
        shared.zero_grad()
        return shared

    def scores(model: nn.Module, *batch: Tensor) -> dict[str, Tensor]:
        # Not compiled: that would not pay for a few batches of another shape.
        with torch.compiler.set_stance("force_eager"):
            return recipe.scores(model, batch)

    return replace(recipe, model=model, scores_of=scores)
