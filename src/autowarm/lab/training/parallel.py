"""The ranks of a run: a single process, or the processes that `torchrun` started, with DDP or FSDP2.

Each rank makes its own rows of the global batch. All ranks take the same decisions, because they see the same numbers.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from ..._torch.devices import collective_device
from ..config import EngineConfig, LabError, UsageError, differences

_T = TypeVar("_T")

# Peak rates of dense bfloat16 products, in operations per second, from the makers' data sheets.
PEAK_FLOPS = {"A100": 312e12, "H100": 989e12, "H200": 989e12, "GH200": 989e12, "B200": 2250e12, "L40S": 362e12,
              "L4": 121e12}  # fmt: skip


@dataclass(frozen=True)
class Ranks:
    """This process's place among the run's processes, and its device."""

    rank: int
    world: int
    device: torch.device

    @property
    def group(self) -> Any:
        """The group of all ranks; None if there is only one."""
        return dist.group.WORLD if self.world > 1 else None

    def rows(self, batch_size: int, accumulate: int) -> slice:
        """Return this rank's rows of a global batch; UsageError if it cannot be split evenly."""
        share, surplus = divmod(batch_size, self.world)
        if surplus or share % accumulate:
            factors = f"{self.world} × {accumulate}"
            raise UsageError(f"batch_size {batch_size} must be a multiple of ranks × engine.accumulate = {factors}")
        return slice(self.rank * share, (self.rank + 1) * share)

    def agree(self, who: Mapping[str, Any]) -> None:
        """Check that all ranks were given the same run; if not, LabError lists the differences on every rank."""
        if self.world == 1:
            return
        everyone: list[Any] = [None] * self.world
        dist.all_gather_object(everyone, dict(who))
        for rank, other in enumerate(everyone):
            if changed := differences(everyone[0], other):
                raise LabError(f"ranks disagree: rank 0 and rank {rank} differ in {'; '.join(changed)}")

    def seed(self, seed: int) -> None:
        """Seed the generators that a step can draw from, and no other device's, which would take half a millisecond."""
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def mean(self, *values: float) -> list[float]:
        """Return means over the ranks, bit-identical on all of them."""
        if self.world == 1:
            return list(values)
        summed = torch.tensor(values, dtype=torch.float64, device=collective_device(None))
        dist.all_reduce(summed)
        return [float(value) / self.world for value in summed]

    def largest(self, value: int) -> int:
        if self.world == 1:
            return value
        largest = torch.tensor([value], device=collective_device(None))
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def first(self, work: Callable[[], _T], shared: bool = True) -> _T | None:
        """Do the work on rank 0 and return its result; on other ranks return the result if `shared`, otherwise None.

        A LabError on rank 0 is raised on every rank, so that no rank waits for it.
        """
        if self.world == 1:
            return work()
        result, message = None, None
        if self.rank == 0:
            try:
                result = work()
            except LabError as error:
                message = str(error)
        exchanged: list[Any] = [message, result if shared else None]
        dist.broadcast_object_list(exchanged)
        if exchanged[0] is not None:
            raise LabError(exchanged[0])
        return result if self.rank == 0 else exchanged[1]

    def share_buffers(self, model: nn.Module) -> None:
        """Give every rank the first one's buffers, such as BatchNorm's averages, which each keeps of its own rows."""
        buffers = dict(model.named_buffers())
        if self.world > 1 and buffers:
            shared = self.first(lambda: {name: buffer.cpu() for name, buffer in buffers.items()})
            for name, value in (shared or {}).items():
                buffers[name].copy_(value)


@contextmanager
def joined(engine: EngineConfig) -> Iterator[Ranks]:
    """Join the ranks of `torchrun`'s environment or of a group that is already in use, or run this process alone."""
    if engine.device == "cuda" and not torch.cuda.is_available():
        raise LabError("engine.device is cuda and this machine has no usable GPU: use auto or cpu")
    cuda = engine.device != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    ours = int(os.environ.get("WORLD_SIZE", 1)) > 1 and not dist.is_initialized()
    if ours:
        # Use gloo for numbers on the host and NCCL for gradients on GPUs.
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), device) if dist.is_initialized() else Ranks(0, 1, device)
    finally:
        if ours:
            dist.destroy_process_group()


def spread(model: nn.Module, engine: EngineConfig, ranks: Ranks) -> nn.Module:
    """Prepare the model for training on the ranks: alone, copied (DDP), or sharded block by block (FSDP2)."""
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
    """Return a context for one micro-batch that synchronises gradients only on the last one."""
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(last)
    elif hasattr(model, "no_sync") and not last:
        return model.no_sync()
    return nullcontext()
