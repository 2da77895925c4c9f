"""What a step launches and holds on GPUs, counted without one: operators and temporaries at LLaMA's shapes.

    python benchmarks/fake_gpu.py          # writes docs/data/tables/step-counts.csv
    python benchmarks/fake_gpu.py 124M 1B  # prints these sizes

Tensors have shapes and no data (`torch._subclasses.FakeTensorMode`), ranks exchange nothing. What counts is in
`tests/optim/fake_device.py`; `tests/optim/test_fake_device.py` holds the numbers to their bounds.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer

from autowarm import Muon
from autowarm.lab.analysis.markdown import comma_separated

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "optim"))

from fake_device import LLAMA_1B, LLAMA_8B, LLAMA_124M, eight_ranks, fake_parameters, fake_shards, standing_in, watched

SIZES = {"124M": LLAMA_124M, "1B": LLAMA_1B, "8B": LLAMA_8B}
TABLE = Path(__file__).parents[1] / "docs" / "data" / "tables" / "step-counts.csv"


def table(sizes: list[str]) -> str:
    """CSV: what a step of each optimizer launches and holds."""
    options, rows = {"lr": 0.1, "weight_decay": 0.1}, []
    with standing_in(), eight_ranks() as meshes:
        ways: dict[str, Callable[[list[tuple[int, int]]], Optimizer]] = {
            "torch.optim.Muon": lambda shapes: torch.optim.Muon(fake_parameters(shapes), **options),
            "ours": lambda shapes: Muon(fake_parameters(shapes), **options),
            "ours, bfloat16 weights": lambda shapes: Muon(fake_parameters(shapes, dtype=torch.bfloat16), **options),
            "ours, DDP on 8 ranks": lambda s: Muon(fake_parameters(s), process_group=dist.group.WORLD, **options),
            "ours, FSDP2 on 8 ranks": lambda shapes: Muon(fake_shards(shapes, meshes["fsdp"]), **options),
            "ours, HSDP on 2 × 4 ranks": lambda shapes: Muon(fake_shards(shapes, meshes["hsdp"]), **options),
        }
        for size in sizes:
            for name, make in ways.items():
                with FakeTensorMode(allow_non_fake_inputs=True):
                    optimizer = make(SIZES[size])
                    optimizer.step()  # makes the state
                    step = watched(optimizer.step)
                rows.append([size, name, len(step.operators), f"{step.peak / 1e9:.2f} GB"])
    return comma_separated(["shapes", "optimizer", "operators", "temporaries"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sizes", nargs="*", help=f"some of {', '.join(SIZES)}; default: all, into the docs' table")
    if sizes := parser.parse_args().sizes:
        print(table(sizes), end="")
    else:
        TABLE.write_text(table([*SIZES]), encoding="utf-8")


if __name__ == "__main__":
    main()
