"""What four processes (gloo) run: every check, in turn, on the first two of them and on all."""

import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.optim.ranks import agreement, placements, steps  # noqa: F401
from tests.optim.ranks.checks import CHECKS, SIZES
from tests.programs import leave
from tests.rate import search_ranks  # noqa: F401

if __name__ == "__main__":
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=max(SIZES))
    meshes = {size: DeviceMesh("cpu", list(range(size))) for size in SIZES}
    outcomes = []
    for (name, size), check in CHECKS.items():
        cases = [*check(meshes[size])] if rank < size else []
        outcomes.append([name, size, len(cases), [repr(case) for case, right in cases if not right]])
    leave(folder, outcomes)
