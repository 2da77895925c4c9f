"""Two ranks that recover together, in real processes."""

import math
from pathlib import Path

import pytest
import torch

from tests.programs import Launcher, rank_environment


@pytest.mark.parametrize("kind", ["ddp", "tensor", "fsdp"])
def test_ranks_stay_bit_identical_through_a_recovery(kind: str, rank_launcher: Launcher, tmp_path: Path) -> None:
    """AdamW and a batch of NaNs on one rank under DDP; Lion and targets × 1000 on one rank under DDP and FSDP2."""
    ended = rank_launcher.run_together(
        [Path(__file__).parent / "recovery_ranks.py", tmp_path, kind],
        [rank_environment(rank, 2, port=0) for rank in (0, 1)],
    )
    assert [one.status for one in ended] == [0, 0], "".join(one.stderr for one in ended)
    a, b = (torch.load(tmp_path / f"{kind}-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert all(torch.equal(x, y) for x, y in zip(a[0], b[0], strict=True))
    assert a[1:3] == b[1:3]
    assert a[2]
    assert all(restored is not None and restored <= 120 < update < 180 for update, restored in a[2])
    assert math.isfinite(a[3])
