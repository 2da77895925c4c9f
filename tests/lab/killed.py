"""Run a command, whose last word is its folder, and die there at its n-th change of a file, or never for 0.

Nothing is cleaned up, as after SIGKILL. Runs are made in this process.
"""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the launcher's path has no tests

from autowarm.lab.commands import main
from autowarm.lab.execution import engine
from tests.lab.helpers import run_here

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree"}
left = int(sys.argv[1])


def count(event: str, given: tuple[Any, ...]) -> None:
    global left
    changes = event in CHANGES or (event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR))
    if changes and str(given[0]).startswith(sys.argv[-1]):
        left -= 1
        if left == 0:
            os._exit(137)


engine.run_jobs = run_here  # type: ignore[assignment]
if left:
    sys.addaudithook(count)
os._exit(main(sys.argv[2:]))
