"""One of two ranks of test_ranks.py: steps drawn at random, against the plain code for them."""

import math
import os
import random
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from autowarm import LMO, Muon
from autowarm.geometry import Frobenius, Spectral

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.optim.makers import EVERY, Made
from tests.optim.ranks.checks import whole
from tests.programs import leave
from tests.reference import adamw_step_, lmo_step_

# The iterations run in float32; what half precision makes of them has tests of its own.
SINGLE: dict[str, Any] = {"method": "polar-express", "dtype": torch.float32}
MAKERS = {
    **{name: EVERY[name] for name in ("signsgd", "signsgd, no momentum", "lion", "normsgd", "normsgd, nesterov")},
    "rows": Made(LMO, {"geometry": "rows", "nesterov": True}),
    "columns": Made(LMO, {"geometry": "columns"}),
    "svd": Made(LMO, {"geometry": Spectral("original")}),
    "muon": Made(Muon, {"dtype": torch.float32}),
    "muon, newton-schulz": Made(Muon, {"dtype": torch.float32, "method": "newton-schulz"}),
    "muon, in blocks": Made(LMO, {"geometry": Spectral(**SINGLE, blocks=2)}),
    "muon, stacked": Made(LMO, {"geometry": Spectral(**SINGLE, stacked=True)}),
    "normsgd, stacked": Made(LMO, {"geometry": Frobenius(stacked=True)}),
    "adamw part": EVERY["adamw part"],
}
LR, DECAY, STEPS = 0.05, 0.1, 3
# How far a weight of about 1 may be from the plain code's after these steps, which rounds in another order.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
SHAPES = [(4, 6), (6, 4), (8, 8), (2, 5), (6, 3, 4), (4, 3, 2, 2)]


class Case:
    """What one case is, drawn from its number, the same on both ranks."""

    def __init__(self, number: int) -> None:
        draw = random.Random(number)
        self.number = number
        self.name = draw.choice(sorted(MAKERS))
        self.dtype = draw.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16])
        self.grad_dtype = self.dtype if draw.random() < 0.8 else draw.choice(list(TOLERANCE))
        self.autocast = draw.choice([None, None, torch.bfloat16, torch.float16])
        self.layout = draw.choice(["plain", "plain", "one rank", "two ranks", "two ranks", "grid"])
        self.shared = self.layout == "plain" and draw.random() < 0.5  # ``process_group`` of both ranks
        kinds = ["replicate", "shard 0", "shard 0", "shard 1"]
        self.placed = draw.choice(kinds)
        self.grad_placed = self.placed if draw.random() < 0.6 else draw.choice([*kinds, "partial"])
        self.tensor_lr = draw.random() < 0.5
        self.flaw = draw.choice([None] * 6 + ["nan", "inf", "nan on one rank", "missing", "missing on one rank"])
        flat = [] if "muon" in self.name else [(), (7,), (1,)]
        # Three dimensions may be a stack or a kernel, which these geometries do not say.
        silent = self.name.startswith(("muon", "svd", "normsgd")) and "stacked" not in self.name
        solid = [shape for shape in SHAPES if not (silent and len(shape) == 3)]
        self.shapes = [draw.choice(solid + flat) for _ in range(draw.randint(1, 4))]

    def __repr__(self) -> str:
        return str(vars(self))

    def mode(self) -> AbstractContextManager[object]:
        return nullcontext() if self.autocast is None else torch.autocast("cpu", self.autocast)

    def tensors(self, generator: torch.Generator) -> list[Tensor]:
        """Of entries away from 0 and matrices far from singular, so that rounding decides nothing."""
        return [base(shape, generator) for shape in self.shapes]


def base(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    signs = torch.randint(0, 2, shape, generator=generator).double() * 2 - 1
    x = signs * (0.5 + torch.rand(shape, generator=generator).double())
    if x.ndim < 2:
        return x
    eye = torch.eye(x.shape[-2], x.shape[-1], dtype=x.dtype) if x.ndim < 4 else torch.eye(x.shape[0], 12).view(shape)
    return x + 4 * eye


def placements(kind: str, mesh: DeviceMesh) -> list[Any]:
    last = {"replicate": Replicate(), "shard 0": Shard(0), "shard 1": Shard(1), "partial": Partial()}[kind]
    return [Replicate()] * (mesh.ndim - 1) + [last]


def spread(x: Tensor, kind: str, mesh: DeviceMesh | None) -> Tensor:
    if mesh is None:
        return x.clone()
    if (kind == "shard 1" and x.ndim < 2) or (kind == "shard 0" and x.ndim < 1):
        kind = "replicate"
    if kind == "partial":  # which each rank has a part of
        share = (0.25, 0.75)[mesh.get_local_rank(mesh.ndim - 1)] if mesh.size(mesh.ndim - 1) == 2 else 1.0
        return DTensor.from_local(x * share, mesh, placements(kind, mesh), run_check=False)
    return distribute_tensor(x, mesh, placements(kind, mesh), src_data_rank=None)


def live(case: Case, rank: int, meshes: dict[str, DeviceMesh]) -> dict[str, Any]:
    """Step, and step by the plain code. Returns how they differ, or the error and whether anything had moved."""
    mesh = meshes.get(case.layout)
    generator = torch.Generator().manual_seed(case.number)
    plain = [x.to(case.dtype) for x in case.tensors(generator)]
    params = [nn.Parameter(spread(x, case.placed, mesh)) for x in plain]
    for p in params:
        p.grad_dtype = None  # gradients may be of another dtype
    lr = torch.tensor(LR, dtype=torch.float64) if case.tensor_lr else LR
    options: dict[str, Any] = {"process_group": dist.group.WORLD} if case.shared and takes_group(case.name) else {}
    together = bool(options) or case.layout in ("two ranks", "grid")
    before = plain
    try:
        optimizer = MAKERS[case.name](params, lr, weight_decay=DECAY, **options)
        (group,) = optimizer.param_groups
        first = case.tensors(generator)
        states: list[dict[str, Tensor]] = [{} for _ in plain]
        for step in range(STEPS):
            noise = [1 + 0.1 * torch.rand(x.shape, generator=generator).double() for x in plain]
            grads: list[Tensor | None] = [(x * n).to(case.grad_dtype) for x, n in zip(first, noise, strict=True)]
            own = list(grads)
            if step == 1 and case.flaw is not None:
                alone = "one rank" in case.flaw
                spoilt = None if "missing" in case.flaw else grads[0] * (math.nan if "nan" in case.flaw else math.inf)
                if not alone or rank == 1:
                    own[0] = spoilt
                if not alone or (together or rank == 1):
                    grads[0] = spoilt
            for p, g in zip(params, own, strict=True):
                p.grad = None if g is None else spread(g, case.grad_placed, mesh)
            before = [whole(p).clone() for p in params]
            with case.mode():
                optimizer.step()
            stepped_plainly(case, group, plain, grads, states)
    except Exception as error:
        after = [whole(p) for p in params]
        moved = any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
        return {"error": f"{type(error).__name__}: {error}", "moved": moved, "together": together}
    rough = max(TOLERANCE[case.dtype], TOLERANCE[case.grad_dtype] if case.grad_placed == "partial" else 0.0)
    differences = [(whole(p).double() - x.double()).abs() for p, x in zip(params, plain, strict=True)]
    worst = max((d / x.double().abs().clamp_min(1.0)).max().item() for d, x in zip(differences, plain, strict=True))
    return {"error": None, "worst": worst, "allowed": rough, "together": together}


def takes_group(name: str) -> bool:
    return name.startswith(("muon", "svd", "rows", "columns", "adamw"))


def stepped_plainly(case: Case, group: dict, xs: list[Tensor], grads: list, states: list[dict]) -> None:
    cast = [None if g is None else g.to(x.dtype) for x, g in zip(xs, grads, strict=True)]
    if any(g is not None and not g.isfinite().all() for g in cast):
        return
    for x, g, state in zip(xs, cast, states, strict=True):
        if g is not None:
            (adamw_step_ if case.name == "adamw part" else lmo_step_)(group, x, g, state)


def main(folder: str, *numbers: str) -> None:
    rank = int(os.environ["RANK"])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    each = DeviceMesh("cpu", [[0], [1]], mesh_dim_names=("both", "each"))
    meshes = {
        "one rank": each["each"],
        "two ranks": DeviceMesh("cpu", [0, 1]),
        "grid": DeviceMesh("cpu", [[0, 1]], mesh_dim_names=("copies", "shards")),
    }
    cases = [Case(number) for part in numbers for number in range(*map(int, part.split("-")))]
    leave(folder, [{"case": repr(case), "name": case.name} | live(case, rank, meshes) for case in cases])


if __name__ == "__main__":
    main(*sys.argv[1:])
