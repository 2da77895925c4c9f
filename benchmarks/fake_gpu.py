"""What a step launches and holds on GPUs, counted without one: operators and temporaries at LLaMA's shapes.

    python benchmarks/fake_gpu.py          # all sizes
    python benchmarks/fake_gpu.py 124M 1B

Tensors have shapes and no data (`torch._subclasses.FakeTensorMode`), ranks exchange nothing. What is counted and what
not is in `tests/optim/fake_device.py`; `tests/optim/test_fake_device.py` holds the numbers to their bounds.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from autowarm import Muon, devices

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "optim"))

from fake_device import (
    LLAMA_1B,
    LLAMA_8B,
    LLAMA_124M,
    Accelerator,
    FakeTensorMode,
    eight_ranks,
    fake_parameters,
    fake_shards,
    watched,
)

SIZES = {"124M": LLAMA_124M, "1B": LLAMA_1B, "8B": LLAMA_8B}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sizes", nargs="*", help=f"some of {', '.join(SIZES)}; default: all")
    sizes = parser.parse_args().sizes or list(SIZES)
    options = {"lr": 0.1, "weight_decay": 0.1}
    print("| shapes | optimizer | operators | temporaries |\n|---|---|---|---|")
    accelerator = Accelerator()
    with mock.patch.object(devices, "_module", return_value=accelerator), eight_ranks() as meshes:
        ways: dict[str, Callable[[list[tuple[int, int]]], Optimizer]] = {
            "torch.optim.Muon": lambda shapes: torch.optim.Muon(fake_parameters(shapes), **options),
            "ours": lambda shapes: Muon(fake_parameters(shapes), **options),
            "ours, bfloat16 weights": lambda shapes: Muon(fake_parameters(shapes, dtype=torch.bfloat16), **options),
            "ours, DDP on 8 ranks": lambda shapes: Muon(
                fake_parameters(shapes), process_group=dist.group.WORLD, **options
            ),
            "ours, FSDP2 on 8 ranks": lambda shapes: Muon(fake_shards(shapes, meshes["fsdp"]), **options),
            "ours, HSDP on 2 × 4 ranks": lambda shapes: Muon(fake_shards(shapes, meshes["hsdp"]), **options),
        }
        for size in sizes:
            for name, make in ways.items():
                with FakeTensorMode(allow_non_fake_inputs=True):
                    optimizer = make(SIZES[size])
                    optimizer.step()  # makes the state
                    step = watched(optimizer.step)
                print(f"| {size} | {name} | {len(step.operators)} | {step.peak / 1e9:.2f} GB |", flush=True)


if __name__ == "__main__":
    main()
