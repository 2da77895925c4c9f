"""What differs between kinds of devices: reading a value without waiting for it, capturing graphs, talking to ranks."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["HostCopy", "collective_device", "is_capturing", "traced_as_constant"]

_F = TypeVar("_F", bound=Callable[..., Any])


def traced_as_constant(function: _F) -> _F:
    """Have `torch.compile` call this function while it traces, and take what it returns for a constant.

    It is `torch.compiler.assume_constant_result`, without importing the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def _module(device: torch.device | str) -> Any:
    """`torch.cuda` or its like."""
    return torch.get_device_module(device)


def is_capturing(device: torch.device) -> bool:
    """Whether the work launched now is captured in a graph, to be replayed later, instead of done."""
    if device.type == "cpu" or torch.compiler.is_compiling():
        return False
    module = _module(device)
    ask = getattr(module, "is_current_stream_capturing", None)
    # A device that was never used captures nothing, and asking it needs a driver.
    return bool(ask and module.is_initialized() and ask())


class HostCopy:
    """Copies a small tensor to the host, some time after it is asked to, without waiting for the device.

    One copy at a time: an event recorded anew before it has happened might never be found to have happened. Devices
    without events and streams (MPS) are waited for.

    Args:
        content: what is copied; the same tensor each time, changed in place.
    """

    def __init__(self, content: Tensor) -> None:
        self._content = content
        self._streams = _module_with_events(content.device)
        self._arrived = self._streams.Event() if self._streams else None
        # Copies to memory that is not pinned are not asynchronous.
        self._letter = torch.empty_like(content, device="cpu", pin_memory=self._arrived is not None)
        self._stamp: tuple[int, ...] | None = None

    def send(self, *stamp: int) -> None:
        """Copy what is there now, unless a copy is under way.

        Args:
            stamp: numbers the host knows, to be returned with the values.
        """
        if self._stamp is not None:
            return
        self._stamp = stamp
        self._letter.copy_(self._content, non_blocking=self._arrived is not None)
        if self._arrived is not None:
            # On the stream that makes the copy: the tensor's device need not be the current one.
            self._arrived.record(self._streams.current_stream(self._content.device))

    def read(self) -> tuple[tuple[int, ...], list[Any]] | None:
        """The stamp and the values of a copy that has arrived, once; None where none has."""
        if self._stamp is None or not (self._arrived is None or self._arrived.query()):
            return None
        stamp, self._stamp = self._stamp, None
        return stamp, self._letter.numpy().tolist()  # numpy reads memory; an operator might wait


def _module_with_events(device: torch.device) -> Any:
    if device.type == "cpu":
        return None
    module = _module(device)
    return module if hasattr(module, "Event") and hasattr(module, "current_stream") else None


def collective_device(group: dist.ProcessGroup | None, preferred: torch.device | str = "cpu") -> torch.device:
    """A device whose tensors the group can exchange: the preferred one, or the first that its backends serve.

    Args:
        group: None for all ranks.
        preferred: where the tensors are anyway.

    Example:
        >>> import os, tempfile, torch
        >>> from autowarm.devices import collective_device
        >>> store = os.path.join(tempfile.mkdtemp(), "store")
        >>> torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
        >>> collective_device(None)
        device(type='cpu')
        >>> torch.distributed.destroy_process_group()
    """
    preferred = torch.device(preferred)
    # The name of a backend does not tell: it may be "undefined", or several, one for each kind of device.
    kinds = [pair.split(":")[0] for pair in dist.get_backend_config(group).split(",")]
    if preferred.type in kinds:
        return preferred
    if "cpu" in kinds:
        return torch.device("cpu")
    return torch.device(kinds[0], _module(kinds[0]).current_device())
