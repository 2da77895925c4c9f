"""Two forked processes, and an Accelerate without a past."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.programs import Launcher, free_port, results

HERE = Path(__file__).parent / "ranks"
OnTwo = Callable[[str, Path], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def on_two_processes(trainer_launcher: Launcher) -> OnTwo:
    """Runs a script in `ranks` on two processes, which write into a folder; returns what each of them wrote."""

    def run(script: str, folder: Path) -> list[dict[str, Any]]:
        trainer_launcher.run_ranks(2, [HERE / script, folder], free_port())
        return results(folder)

    return run


@pytest.fixture
def fresh_accelerate() -> Iterator[None]:
    """Accelerate keeps its state in globals: each test begins and ends without."""
    from accelerate.state import AcceleratorState, GradientState

    for reset in (True, False):
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        if reset:
            yield
