"""The ranks of a run: one process alone, or those that `torchrun` started, by DDP or FSDP2.

Every rank makes its own rows of the global batch and all take the same decisions, for they look at the same numbers.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from ...devices import collective_device
from ..config import EngineConfig, LabError, RunConfig, differences

_T = TypeVar("_T")

# Peak bfloat16 rates of dense products, in operations a second, from the makers' data sheets.
_PEAK = {"A100": 312e12, "H100": 989e12, "H200": 989e12, "GH200": 989e12, "B200": 2250e12, "L40S": 362e12, "L4": 121e12}


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run, and the device that it computes on."""

    rank: int
    world: int
    device: torch.device

    @property
    def group(self) -> Any:
        """All of them, where there are several."""
        return dist.group.WORLD if self.world > 1 else None

    def rows(self, config: RunConfig) -> slice:
        """This rank's rows of a global batch.

        Raises:
            LabError: the batch cannot be shared out evenly.
        """
        pieces = self.world * config.engine.accumulate
        if config.batch_size % pieces:
            raise LabError(
                f"batch_size {config.batch_size} must be a multiple of ranks × engine.accumulate = "
                f"{self.world} × {config.engine.accumulate}"
            )
        share = config.batch_size // self.world
        return slice(self.rank * share, (self.rank + 1) * share)

    def agree(self, who: Mapping[str, Any]) -> None:
        """Checks that all ranks were given the same.

        Raises:
            LabError: on every rank, where one was not; the message lists the differences.
        """
        if self.world == 1:
            return
        everyone: list[Any] = [None] * self.world
        dist.all_gather_object(everyone, dict(who))
        for rank, other in enumerate(everyone):
            if changed := differences(everyone[0], other):
                raise LabError(f"ranks disagree: rank 0 and rank {rank} differ in {'; '.join(changed)}")

    def seed(self, seed: int) -> None:
        """Seeds the generators that a step can draw from.

        `torch.manual_seed` visits those of every kind of device there might be, which takes a small model's step
        half a millisecond.
        """
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def mean(self, *values: float) -> list[float]:
        """Means over the ranks, the same on each of them to the bit."""
        if self.world == 1:
            return list(values)
        summed = torch.tensor(values, dtype=torch.float64, device=collective_device(None))
        dist.all_reduce(summed)
        return [float(value) / self.world for value in summed]

    def largest(self, value: int) -> int:
        """The largest of the ranks' values."""
        if self.world == 1:
            return value
        found = torch.tensor([value], device=collective_device(None))
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def first(self, work: Callable[[], _T], shared: bool = True) -> _T | None:
        """What rank 0 made of the work, on the others too where it is `shared`, and otherwise None.

        What it objects to is raised on every rank, so that none waits for it.
        """
        if self.world == 1:
            return work()
        result: _T | None = None
        said: list[Any] = [None, None]
        if self.rank == 0:
            try:
                result = work()
                said[1] = result if shared else None
            except LabError as error:
                said[0] = str(error)
        dist.broadcast_object_list(said)
        if said[0] is not None:
            raise LabError(said[0])
        return result if self.rank == 0 else said[1]


@contextmanager
def joined(engine: EngineConfig) -> Iterator[Ranks]:
    """The ranks: those of `torchrun`'s environment, those of a group that is in use already, or this process alone."""
    if engine.device == "cuda" and not torch.cuda.is_available():
        raise LabError("engine.device is cuda and this machine has no usable GPU: use auto or cpu")
    cuda = engine.device != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    ours = int(os.environ.get("WORLD_SIZE", 1)) > 1 and not dist.is_initialized()
    if ours:
        # Numbers on the host go by gloo, gradients on GPUs by NCCL.
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    several = dist.is_initialized() and dist.get_world_size() > 1
    try:
        yield Ranks(dist.get_rank() if several else 0, dist.get_world_size() if several else 1, device)
    finally:
        if ours:
            dist.destroy_process_group()


def spread(model: nn.Module, engine: EngineConfig, ranks: Ranks) -> nn.Module:
    """The model as the ranks train it: alone, copied (DDP), or cut block by block (FSDP2)."""
    if ranks.world > 1 and engine.parallel == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(ranks.device.type, (ranks.world,))
        for module in list(model.modules()):
            if type(module).__name__.endswith(("DecoderLayer", "Block")):
                fully_shard(module, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if engine.compile:
        model.compile()
    if ranks.world > 1 and engine.parallel == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    return model


def unreduced(model: Any, last: bool) -> AbstractContextManager[None]:
    """Around one micro-batch: gradients are summed over the ranks after the last alone."""
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(last)
    elif hasattr(model, "no_sync") and not last:
        return model.no_sync()
    return nullcontext()


def peak_flops() -> float | None:
    """Operations a second that this GPU is sold with, in bfloat16; None where it is unknown or there is none."""
    if not torch.cuda.is_available():
        return None
    words = torch.cuda.get_device_name().split()
    return next((rate for name, rate in _PEAK.items() if any(word.split("-")[0] == name for word in words)), None)
