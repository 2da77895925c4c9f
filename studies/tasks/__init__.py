"""The studies' tasks, which the lab's runs train as tasks of our own: two of the lab's and 21 more.

- `small`: language, images, a linear network.      - `finetuning`: from trained weights.
- `fresh`: unlike all others, for rules that were chosen without them.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autowarm.lab.config import RunConfig
from autowarm.lab.tasks.recipes import Recipe, RecipeTask

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

    def make(self, config: RunConfig) -> RecipeTask:
        """The task in a run."""
        return RecipeTask(self.name, TASKS[self.name], config, self.sha256)


@cache
def _sha256() -> str:
    return hashlib.sha256(
        b"\0".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    ).hexdigest()
