"""A GPU that is not there: what a step launches, reads back and allocates, on tensors without data.

Under `FakeTensorMode` tensors have a device, a shape and a dtype, and operators compute no more than those. `watched`
notes every operator of one step. It sees what Python dispatches: one `torch._foreach_…` operator counts once, and what
a kernel allocates inside itself does not count.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autowarm._torch import devices
from autowarm.optim.ranks import agreement

# Operators that launch nothing. Views are found by their schema, these by name.
_FREE = {
    *("aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided", "aten::new_empty_strided"),
    *("aten::set_", "aten::lift_fresh", "aten::detach", "aten::_unsafe_view", "aten::promote_types", "prim::device"),
    *("profiler::_record_function_enter_new", "profiler::_record_function_exit"),
}


@dataclass
class Step:
    """What one step did.

    Attributes:
        operators: names of those that launch work, in order.
        host_reads: names of those that bring a value to the host; each waits for the device.
        peak: bytes of temporaries alive at one time, at most.
    """

    operators: list[str] = field(default_factory=list)
    host_reads: list[str] = field(default_factory=list)
    peak: int = 0


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.step = Step()
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {id(s) for s in map(_storage, tree_leaves((args, kwargs))) if s is not None}
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name == "aten::_local_scalar_dense" or self._to_host(func, args, kwargs, out):
            self.step.host_reads.append(name)
        if not (func.is_view or name in _FREE):
            self.step.operators.append(name)
        for leaf in tree_leaves(out):
            storage = _storage(leaf)
            if storage is not None and leaf.device.type != "cpu" and id(storage) not in known:
                self._born(storage)
        return out

    @staticmethod
    def _to_host(func: Any, args: Any, kwargs: Any, out: Any) -> bool:
        sources = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.device.type != "cpu"]
        results = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        made = func._schema.name in ("aten::_to_copy", "aten::copy_", "aten::_copy_from")
        return bool(made and sources and any(x.device.type == "cpu" for x in results))

    def _born(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._alive:
            return
        self._alive[key] = storage.nbytes()
        weakref.finalize(storage, self._alive.pop, key, None)
        self.step.peak = max(self.step.peak, sum(self._alive.values()))


def _storage(x: Any) -> torch.UntypedStorage | None:
    return x.untyped_storage() if isinstance(x, Tensor) else None


class Accelerator:
    """Stands in for `torch.cuda` and its kin: events and streams that only take notes.

    Attributes:
        recorded: of each event recorded, the stream's device.
        arrived: what events say when they are asked whether they have happened.
        capturing: whether a graph is being captured.
    """

    def __init__(self) -> None:
        self.recorded: list[torch.device] = []
        self.arrived = self.capturing = False
        accelerator = self

        class Event:
            def record(self, stream: torch.device) -> None:
                accelerator.recorded.append(stream)

            def query(self) -> bool:
                return accelerator.arrived

        self.Event = Event

    def current_stream(self, device: torch.device) -> torch.device:
        return device

    def current_device(self) -> int:
        return 0

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.capturing


@contextmanager
def standing_in() -> Iterator[Accelerator]:
    """Let an `Accelerator` stand in for `torch.cuda`."""
    accelerator = Accelerator()
    with (
        mock.patch.object(devices, "_module", return_value=accelerator),
        mock.patch.object(torch.cuda, "is_available", return_value=False),
        # The first step of several ranks reads what they agree on, and fake tensors have no values.
        mock.patch.object(agreement, "read", lambda numbers: [0] * numbers.numel()),
    ):
        yield accelerator


def watched(step: Callable[[], Any]) -> Step:
    """What this call did, on fake tensors."""
    with _Watch() as watch:
        step()
    return watch.step


@contextmanager
def eight_ranks() -> Iterator[dict[str, DeviceMesh]]:
    """A process group of eight ranks of which this is the first, whose messages never arrive, and meshes of GPUs."""
    stand_ins = {"set_device": lambda device: None, "is_initialized": lambda: True, "current_device": lambda: 0}
    with ExitStack() as stack:
        for name, stand_in in {**stand_ins, "device_count": lambda: 8}.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, stand_in))
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
        stack.callback(dist.destroy_process_group)
        yield {"fsdp": DeviceMesh("cuda", list(range(8))), "hsdp": DeviceMesh("cuda", [[0, 1, 2, 3], [4, 5, 6, 7]])}


def llama(layers: int, width: int, inner: int, kv: int | None = None, vocabulary: int = 0) -> list[tuple[int, int]]:
    """The hidden matrices of a LLaMA; fused query, key and value unless ``kv``, their rows, is given."""
    attention = [(3 * width, width)] if kv is None else [(width, width), (kv, width), (kv, width)]
    return ([*attention, (width, width), (inner, width), (inner, width), (width, inner)]) * layers


LLAMA_124M = llama(12, 768, 2048)
LLAMA_1B = llama(16, 2048, 8192, kv=512)
LLAMA_8B = llama(32, 4096, 14336, kv=1024)


def fake_parameters(
    shapes: list[tuple[int, ...]], device: str = "cuda:0", dtype: torch.dtype = torch.float32
) -> list[nn.Parameter]:
    """Parameters with gradients; call it under `FakeTensorMode`."""
    return [_with_gradient(lambda s=shape: torch.empty(s, device=device, dtype=dtype)) for shape in shapes]


def fake_shards(shapes: list[tuple[int, int]], mesh: DeviceMesh) -> list[nn.Parameter]:
    """The same as DTensors, sharded along a mesh's last dimension and copied along any other."""
    placements = [Replicate()] * (mesh.ndim - 1) + [Shard(0)]

    def whole(rows: int, columns: int) -> DTensor:
        local = torch.empty(rows // mesh.size(mesh.ndim - 1), columns, device="cuda:0")
        size = {"shape": torch.Size((rows, columns)), "stride": (columns, 1)}
        return DTensor.from_local(local, mesh, placements, run_check=False, **size)

    return [_with_gradient(lambda s=shape: whole(*s)) for shape in shapes]


def _with_gradient(make: Callable[[], Tensor]) -> nn.Parameter:
    p = nn.Parameter(make())
    p.grad = make()
    return p
