"""Every example runs as a user would run it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SAYS = {"smoothness": "K2"}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
ON_RANKS = {"fsdp2": TORCHRUN}


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_it_runs(example: Path, tmp_path: Path) -> None:
    environment = os.environ | {"MPLBACKEND": "Agg", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *ON_RANKS.get(example.stem, []), str(example)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert SAYS.get(example.stem, "warm-up took") in done.stdout
