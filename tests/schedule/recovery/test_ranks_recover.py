"""Ranks that recover together, in real processes."""

import math
from pathlib import Path

import pytest
import torch

from tests.programs import Launcher, results

KINDS = [("ddp", 2), ("gradient", 2), ("beside", 2), ("tensor", 2), ("fsdp", 2), ("hsdp", 4)]


@pytest.mark.parametrize(("kind", "ranks"), KINDS)
def test_ranks_stay_bit_identical_through_a_recovery(
    kind: str, ranks: int, rank_launcher: Launcher, tmp_path: Path
) -> None:
    """NaN targets or gradients on one rank, AdamW under DDP, also with a `SpikeGuard`; or targets × 1000 there, Lion.

    HSDP has two replicas of two shards each.
    """
    rank_launcher.run_ranks(ranks, [Path(__file__).parent / "recovery_ranks.py", tmp_path, kind])
    a, *others = results(tmp_path, ranks, kind)
    for b in others:
        assert all(torch.equal(x, y) for x, y in zip(a[0], b[0], strict=True))
        assert a[1:3] == b[1:3]
    assert a[2]
    assert all(restored is not None and restored <= 120 < update < 180 for update, restored in a[2])
    assert math.isfinite(a[3])
