"""A name stands in the registry alone: choices, help texts, messages and the pages follow from it."""

from pkgutil import resolve_name

from autowarm.lab.config import RunConfig
from autowarm.lab.registry import OPTIMIZERS, SCHEDULES, SMALL_TASKS
from autowarm.lab.tasks import make_task

from .config.test_build import shown


def test_every_entry_is_where_it_says() -> None:
    assert all(callable(resolve_name(entry.place)) for entry in (*OPTIMIZERS.values(), *SCHEDULES.values()))
    assert [make_task(RunConfig(task=name)).name for name in SMALL_TASKS] == list(SMALL_TASKS)


def test_help_lists_every_name() -> None:
    whole = " ".join(shown("train", "--help").split()).replace("- ", "-")  # argparse breaks a line at a hyphen
    assert [name for name in (*OPTIMIZERS, *SCHEDULES, *SMALL_TASKS) if name not in whole] == []
