"""Device-dependent operations: reading a value without waiting, graph capture, communication between ranks."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

_F = TypeVar("_F", bound=Callable[..., Any])

_module: Any = torch.get_device_module  # such as `torch.cuda`


def traced_as_constant(function: _F) -> _F:
    """Make `torch.compile` call this function while it traces and treat the result as a constant.

    This is `torch.compiler.assume_constant_result` without importing the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def is_capturing(device: torch.device) -> bool:
    """Whether a graph is capturing the work launched now, instead of executing it."""
    if device.type in ("cpu", "meta") or torch.compiler.is_compiling():
        return False
    module = _module(device)
    ask = getattr(module, "is_current_stream_capturing", None)
    # A device that was never used captures nothing, and asking would need a driver.
    return bool(ask and module.is_initialized() and ask())


class HostCopy:
    """Copies a small tensor, always the same one, to the host without waiting for the device.

    It makes one copy at a time, because an event that is recorded again before it completes might never be seen as
    complete. On devices without events and streams (MPS) it waits.
    """

    def __init__(self, content: Tensor) -> None:
        self._content = content
        module = _module(content.device) if content.device.type not in ("cpu", "meta") else None
        self._streams: Any = module if hasattr(module, "Event") and hasattr(module, "current_stream") else None
        self._arrived = self._streams.Event() if self._streams else None
        # Copies to memory that is not pinned are not asynchronous.
        self._letter = torch.empty_like(content, device="cpu", pin_memory=self._arrived is not None)
        self._sent = False

    def send(self) -> None:
        """Start copying the present values, unless a copy is in progress."""
        if self._sent:
            return
        self._sent = True
        self._letter.copy_(self._content, non_blocking=self._arrived is not None)
        if self._arrived is not None:
            # Record it on the stream of the copy: the tensor's device need not be the current one.
            self._arrived.record(self._streams.current_stream(self._content.device))

    def read(self) -> list[Any] | None:
        """The values of a copy that has arrived, once; None if none has."""
        if not self._sent or not (self._arrived is None or self._arrived.query()):
            return None
        self._sent = False
        return self._letter.numpy().tolist()  # numpy reads memory; an operator might wait

    def wait(self) -> list[Any]:
        """Wait for the copy in progress, and return its values."""
        if self._arrived is not None:
            self._arrived.synchronize()
        arrived = self.read()
        assert arrived is not None, "call send() first"
        return arrived


def check_member(group: dist.ProcessGroup | None) -> None:
    """Raise ValueError if this rank is not one of a group's; None is the group of all ranks."""
    if group is not None and dist.is_initialized() and dist.get_rank(group) < 0:
        raise ValueError(
            f"rank {dist.get_rank()} is not in process_group: give each rank the group that it shares the run with"
        )


def collective_device(group: dist.ProcessGroup | None, preferred: torch.device | str = "cpu") -> torch.device:
    """A device whose tensors the group can exchange: the preferred one, or the first that its backends support."""
    preferred = torch.device(preferred)
    # A backend's name is not enough: it may be "undefined", or list one backend per kind of device.
    kinds = [pair.split(":")[0] for pair in dist.get_backend_config(group).split(",")]
    if preferred.type in kinds:
        return preferred
    if "cpu" in kinds:
        return torch.device("cpu")
    return torch.device(kinds[0], _module(kinds[0]).current_device())
