"""Checkpoints that are whole or not there, by `torch.distributed.checkpoint`.

A checkpoint is a folder `checkpoint-STEP`: the tensors in DCP's format, cut as the ranks hold them, everything else in
`rest.pt`, and a `manifest.json` with the checksum of each file. It is written beside its place under a hidden name and
renamed when all of it is on disk. It loads on another number of ranks, too.

DCP's own index is a pickle: load only checkpoints that you trust.
"""

import io
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.optim import Optimizer

from .files import sha256, write_atomically, write_json
from .parallel import Ranks

logger = logging.getLogger(__name__)

_MANIFEST, _REST = "manifest.json", "rest.pt"


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: the run's, seen by all ranks.
        ranks: who saves and loads together.
        keep: how many of the newest stay.
        asynchronous: tensors are copied at once and written by a thread while training goes on.
    """

    def __init__(self, folder: Path, ranks: Ranks, keep: int = 2, asynchronous: bool = False) -> None:
        self.folder, self.ranks, self.keep = folder, ranks, keep
        # A group of its own: a thread's messages must not come between those of the loop.
        self._group: Any = dist.new_group(backend="gloo") if ranks.world > 1 else None
        self._pool = ThreadPoolExecutor(1) if asynchronous else None
        self._writing: Future[None] | None = None
        self._saved = -1
        if ranks.rank == 0:
            for left in folder.glob(".checkpoint-*"):
                shutil.rmtree(left)  # cut off by a crash

    def save(self, step: int, model: nn.Module, optimizer: Optimizer, rest: Mapping[str, Any]) -> None:
        """Saves, unless this step is saved; the oldest of more than `keep` go.

        Args:
            step: after which it is.
            model: with the weights.
            optimizer: with its states.
            rest: plain numbers, text and tensors that are the same on all ranks.
        """
        if step == self._saved:
            return
        self.wait()
        self._saved = step
        state = optimizer.state_dict()
        tensors = _weights(model)
        plain: dict[str, Any] = {}
        for index, values in state["state"].items():
            for name, value in values.items():
                (tensors if isinstance(value, Tensor) else plain)[f"optimizer.{index}.{name}"] = value
        devices = {key: value.device.type for key, value in tensors.items()}
        buffer = io.BytesIO()
        torch.save({**rest, "groups": state["param_groups"], "plain": plain, "devices": devices}, buffer)
        target = self.folder / f"checkpoint-{step:08d}"
        scratch = self.folder / f".{target.name}"
        options: dict[str, Any] = {"storage_writer": dcp.FileSystemWriter(scratch), "process_group": self._group,
                                   "no_dist": self.ranks.world == 1}  # fmt: skip
        with _quiet():
            if self._pool is None:
                dcp.save(tensors, **options)
                self._finish(scratch, target, buffer.getvalue())
            else:
                written: Any = dcp.async_save(tensors, **options)
                self._writing = self._pool.submit(self._finish_later, written, scratch, target, buffer.getvalue())

    def _finish_later(self, written: Any, *rest: Any) -> None:
        written.result()
        self._finish(*rest)

    def _finish(self, scratch: Path, target: Path, rest: bytes) -> None:
        """Runs when every rank has written: rank 0 has DCP's word for that."""
        if self.ranks.rank:
            return
        write_atomically(scratch / _REST, rest)
        files = {path.name: sha256(path) for path in sorted(scratch.iterdir())}
        write_json(scratch / _MANIFEST, {"files": files})
        if target.exists():  # from a run that went on from an older one
            shutil.rmtree(target)
        os.replace(scratch, target)
        for old in self._all()[: -self.keep]:
            shutil.rmtree(old)

    def wait(self) -> None:
        """Returns when what is being written is on disk; raises what went wrong with it."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def load(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Any] | None:
        """Puts the newest whole checkpoint into model and optimizer.

        A damaged one is set aside, and the log says so.

        Returns:
            The rest of what was saved; None where there is no checkpoint.
        """
        name = self.ranks.first(self._newest)
        if name is None:
            return None
        path = self.folder / name
        rest: dict[str, Any] = torch.load(path / _REST, weights_only=True)
        tensors = _weights(model)
        params = [p for group in optimizer.param_groups for p in group["params"]]
        reader = dcp.FileSystemReader(path)
        for key, about in reader.read_metadata().state_dict_metadata.items():
            if key.startswith("optimizer."):
                param = params[int(key.split(".")[1])]
                tensors[key] = _place_for(about, param, rest["devices"][key])
        with _quiet(), torch.no_grad():
            dcp.load(tensors, storage_reader=reader, process_group=self._group, no_dist=self.ranks.world == 1)
        states: dict[int, dict[str, Any]] = {}
        for key, value in [*tensors.items(), *rest["plain"].items()]:
            if key.startswith("optimizer."):
                _, index, field = key.split(".", 2)
                states.setdefault(int(index), {})[field] = value
        optimizer.load_state_dict({"state": states, "param_groups": rest["groups"]})
        return rest

    def _newest(self) -> str | None:
        for path in reversed(self._all()):
            if _whole(path):
                return path.name
            logger.warning("%s does not match its checksums: it is set aside and the one before it is used", path)
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
        return None

    def _all(self) -> list[Path]:
        return sorted(self.folder.glob("checkpoint-*"))

    def clear(self) -> None:
        """Deletes them all: the run is over, and optimizer states are large."""
        self.wait()
        if self.ranks.rank == 0:
            for path in self._all():
                shutil.rmtree(path)

    def close(self) -> None:
        """Waits for what is being written and lets go of the thread."""
        self.wait()
        if self._pool is not None:
            self._pool.shutdown()


def whole_weights(model: nn.Module, ranks: Ranks) -> dict[str, Tensor] | None:
    """The weights by name, each once, gathered on rank 0; None where the model itself holds them whole."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        return None
    names = [key.removeprefix("model.") for key in _weights(model)]
    gathered: Any = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return {name: gathered[name] for name in names} if ranks.rank == 0 else {}


def _weights(model: nn.Module) -> dict[str, Any]:
    """Parameters and buffers, tied ones once, sharing the model's memory."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        found.setdefault(id(value), (name, value))
    return {f"model.{name}": value.detach() for name, value in found.values()}


def _place_for(about: Any, param: Tensor, device: str) -> Tensor:
    """A tensor to load an optimizer's state into: cut like its parameter where it has its shape."""
    if about.size == param.shape and device == param.device.type:
        return torch.zeros_like(param, dtype=about.properties.dtype, requires_grad=False)
    return torch.zeros(about.size, dtype=about.properties.dtype, device=param.device if device != "cpu" else "cpu")


def _whole(path: Path) -> bool:
    try:
        files = json.loads((path / _MANIFEST).read_text())["files"]
        return all(sha256(path / name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextmanager
def _quiet() -> Iterator[None]:
    """Without DCP's remarks on running alone."""
    loggers = [logging.getLogger(f"torch.distributed.checkpoint{name}") for name in ("", "._dedup_save_plans")]
    levels = [each.level for each in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in loggers:
            each.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for each, level in zip(loggers, levels, strict=True):
                each.setLevel(level)


__all__ = ["Checkpoints", "whole_weights"]
