"""Every example runs as a user would run it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SAYS = {"plain_loop": "warm-up took", "smoothness": "K2"}


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_it_runs(example: Path, tmp_path: Path) -> None:
    environment = os.environ | {"MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[example.stem] in done.stdout
