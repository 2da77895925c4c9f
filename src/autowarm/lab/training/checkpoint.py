"""Checkpoints that are complete or absent, by `torch.distributed.checkpoint`.

A checkpoint is a folder `checkpoint-STEP`. It holds the tensors in safetensors files, sharded as on the ranks,
everything else in `rest.pt`, and a `manifest.json` with the run's id, the step and each file's checksum. It is written
under a hidden name and renamed when it is complete on disk. It can be loaded on a different number of ranks.
"""

import copy
import io
import itertools
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
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Optimizer

from autowarm.schedule.recovery.snapshot import Snapshot
from autowarm.undisturbed import overlaps_itself

from ..config import LabError
from ..files import read_object, sha256, write_atomically, write_json
from ..tasks.fingerprint import Walk, is_users
from .parallel import Ranks

logger = logging.getLogger(__name__)

SCHEMA = 3
_MANIFEST, _REST = "manifest.json", "rest.pt"
_PYTORCHS = {*vars(nn.Module()), *vars(SGD([torch.zeros(1)])), "step", "_opt_called"}
_COPY = "copy."  # the beginning of the names of what the guard goes back to
_EXTRA = "_extra_state"  # the end of PyTorch's keys for what a module's `get_extra_state` returns, of any type


class Checkpoints:
    """The checkpoints of one run, in its folder, which all ranks can access.

    Args:
        run: the run's id; checkpoints of other runs are not loaded.
        keep: how many of the newest to keep.
        asynchronous: whether to copy the tensors at once and let a thread write them while training continues.
    """

    def __init__(self, folder: Path, ranks: Ranks, run: str = "", *, keep: int = 2, asynchronous: bool = False) -> None:
        self.folder, self.ranks, self.run, self.keep = folder, ranks, run, keep
        # A separate group, so that the thread's messages do not mix with those of the loop.
        self._group: Any = dist.new_group(backend="gloo") if ranks.world > 1 else None
        self._pool = ThreadPoolExecutor(1) if asynchronous else None
        self._writing: Future[None] | None = None
        if ranks.rank == 0:
            for left in folder.glob(".checkpoint-*"):
                shutil.rmtree(left)  # left by a crash

    def save(
        self, step: int, model: nn.Module, optimizer: Optimizer, rest: Mapping[str, Any], guard: Any = None
    ) -> None:
        """Save a checkpoint and delete all but the newest `keep`.

        Args:
            rest: plain numbers, text and tensors that are the same on all ranks.
            guard: the schedule's, whose copy of the run is saved too: the weights saved may be broken already.

        Raises:
            LabError: it cannot be written; earlier checkpoints are intact.
        """
        self.wait()
        tensors, others = _collect(model, optimizer)
        if guard is not None:
            with guard.at_copy(optimizer) as copied:
                if copied is not None:
                    more, theirs = _collect(model, optimizer)
                    tensors |= {f"{_COPY}{key}": value.clone() for key, value in more.items()}
                    others["copy"] = copy.deepcopy((*copied, theirs))
        buffer = io.BytesIO()
        torch.save({**rest, **others}, buffer)
        target = self.folder / f"checkpoint-{step:08d}"
        scratch = self.folder / f".{target.name}"
        write = dcp.save if self._pool is None else dcp.async_save
        writer = dcp.HuggingFaceStorageWriter(str(scratch), save_distributed=True)
        with warnings.catch_warnings(action="ignore"), self._writing_to(scratch):  # DCP warns if it runs on one process
            written: Any = write(
                _apart(tensors), storage_writer=writer, process_group=self._group, no_dist=self.ranks.world == 1
            )
        job = written, scratch, target, step, buffer.getvalue()
        if self._pool is None:
            self._finish(*job)
        else:
            self._writing = self._pool.submit(self._finish, *job)

    @contextmanager
    def _writing_to(self, scratch: Path) -> Iterator[None]:
        """Report an error of writing in one line and remove partial files, because the disk may be full."""
        try:
            yield
        except (OSError, CheckpointException) as error:
            if self.ranks.rank == 0:
                shutil.rmtree(scratch, ignore_errors=True)
            causes = [cause for cause, _ in error.failures.values()] if hasattr(error, "failures") else [error]
            room = shutil.disk_usage(self.folder).free
            raise LabError(
                f"{scratch.name[1:]} cannot be written: {causes[0]} ({room} bytes are free there now); earlier "
                "checkpoints are intact"
            ) from error

    def _finish(self, written: Any, scratch: Path, target: Path, step: int, rest: bytes) -> None:
        """Put a checkpoint in place once DCP tells rank 0 that every rank has written."""
        with self._writing_to(scratch):
            if isinstance(written, Future):
                written.result()
            if self.ranks.rank:
                return
            write_atomically(scratch / _REST, rest)
            files = {path.name: sha256(path) for path in sorted(scratch.iterdir())}
            write_json(scratch / _MANIFEST, {"schema": SCHEMA, "run": self.run, "step": step, "files": files})
            if target.exists():  # from a run that resumed from an older checkpoint
                shutil.rmtree(target)
            os.replace(scratch, target)
            for old in self._all()[: -self.keep]:
                shutil.rmtree(old)

    def wait(self) -> None:
        """Wait until a pending checkpoint is on disk; raise its error if writing failed."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def load(self, model: nn.Module, optimizer: Optimizer, last: int | None = None) -> dict[str, Any] | None:
        """Load the newest intact checkpoint, up to step `last`, and return its rest; None if there is no checkpoint.

        Damaged checkpoints and those of other runs are set aside, with a message in the log.

        Raises:
            LabError: a checkpoint is of another schema, or holds weights that a new model has not.
        """
        name = self.ranks.first(lambda: self._newest(last))
        if name is None:
            return None
        path = self.folder / name
        rest: dict[str, Any] = torch.load(path / _REST, weights_only=True)
        reader = dcp.HuggingFaceStorageReader(str(path))
        if "copy" in rest:
            update, average, theirs = rest["copy"]
            self._fill(model, optimizer, reader, theirs, _COPY)
            rest["copy"] = update, Snapshot(optimizer, model), average
        self._fill(model, optimizer, reader, rest)
        warn_of_changed(rest["attributes"], attributes(model, optimizer), "not as when the run stopped, because a "
                        "checkpoint holds weights and buffers only")  # fmt: skip
        return rest

    def _fill(
        self, model: nn.Module, optimizer: Optimizer, reader: Any, rest: Mapping[str, Any], prefix: str = ""
    ) -> None:
        """Put what `_collect` returned into a model and an optimizer."""
        tensors: dict[str, Any] = {f"{prefix}model.{name}": p.detach() for name, p in model.named_parameters()}
        params = [p for group in optimizer.param_groups for p in group["params"]]
        for name, about in reader.read_metadata().state_dict_metadata.items():
            key = name.removeprefix(prefix) if name.startswith(prefix) else ""
            if key.startswith("optimizer."):
                tensors[name] = _place_for(about, params[int(key.split(".")[1])], rest["devices"][key])
            elif key.startswith("model.") and (name not in tensors or about.size != tensors[name].shape):
                raise _lacking(key.removeprefix("model."), about.size)
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            dcp.load(tensors, storage_reader=reader, process_group=self._group, no_dist=self.ranks.world == 1)
        _put_buffers(model, rest["buffers"])
        for name, p in model.named_parameters():
            p.requires_grad_(name in rest["trained"])
        for name, module in model.named_modules():
            module.training = name in rest["training"]
        model.load_state_dict(rest["extra"], strict=False)
        states: dict[int, dict[str, Any]] = {}
        loaded = {name.removeprefix(prefix): value for name, value in tensors.items()}
        for key, value in [*loaded.items(), *rest["plain"].items()]:
            if key.startswith("optimizer."):
                _, index, field = key.split(".", 2)
                states.setdefault(int(index), {})[field] = value
        optimizer.load_state_dict({"state": states, "param_groups": rest["groups"]})

    def _newest(self, last: int | None) -> str | None:
        for path in reversed(self._all()):
            if (objection := self._objection(path, last)) is None:
                return path.name
            logger.warning("%s %s: setting it aside and using the previous one", path, objection)
            places = (path.with_name(f"damaged-{path.name}" + "-again" * times) for times in itertools.count())
            path.rename(next(place for place in places if not place.exists()))
        return None

    def _objection(self, path: Path, last: int | None) -> str | None:
        """What is wrong with a checkpoint; None if it is intact."""
        try:
            manifest = read_object(path / _MANIFEST, "", "schema", "run", "step", "files")
        except LabError:
            return "does not match its checksums"
        if manifest["schema"] != SCHEMA:
            raise LabError(f"{path} has schema {manifest['schema']!r}, this version reads {SCHEMA}: delete it, or use "
                           "the version that wrote it")  # fmt: skip
        try:
            there = {file.name: sha256(file) for file in path.iterdir() if file.name != _MANIFEST}
        except OSError:
            there = {}
        if there != manifest["files"] or _REST not in there:
            return "does not match its checksums"
        if (manifest["run"], f"checkpoint-{manifest['step']:08d}") != (self.run, path.name):
            return f"is of update {manifest['step']} of the run {manifest['run']!r}, but this is the run {self.run!r}"
        if last is not None and manifest["step"] > last:
            return f"is of update {manifest['step']}, but metrics.jsonl is intact only up to update {last}"
        return None

    def _all(self) -> list[Path]:
        return sorted(self.folder.glob("checkpoint-*"))

    def clear(self) -> None:
        """Delete all checkpoints: the run is over, and optimizer states are large."""
        self.wait()
        if self.ranks.rank == 0:
            for path in self._all():
                shutil.rmtree(path)

    def close(self) -> None:
        """Wait for a pending checkpoint and stop the thread."""
        self.wait()
        if self._pool is not None:
            self._pool.shutdown()


def whole_weights(model: nn.Module, ranks: Ranks) -> dict[str, Tensor] | None:
    """The weights by name, each once, gathered on rank 0; None if the model holds them unsharded."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        return None
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    gathered: Any = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return {name: gathered[name] for name in names if name in gathered} if ranks.rank == 0 else {}


def _collect(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """What an update changes: weights and the optimizer's tensors, and everything else, which all ranks have alike."""
    state, whole = optimizer.state_dict(), model.state_dict()
    tensors: dict[str, Any] = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    plain: dict[str, Any] = {}
    for index, values in state["state"].items():
        for name, value in values.items():
            (tensors if isinstance(value, Tensor) else plain)[f"optimizer.{index}.{name}"] = value
    extra = {name: value for name, value in whole.items() if name.endswith(_EXTRA)}
    _require_loadable(extra)
    return tensors, {
        "groups": state["param_groups"],
        "plain": plain,
        "devices": {key: value.device.type for key, value in tensors.items()},
        "extra": extra,
        "buffers": {name: (value, name in whole) for name, value in model.named_buffers()},
        "trained": [name for name, p in model.named_parameters() if p.requires_grad],
        "training": [name for name, module in model.named_modules() if module.training],
        "attributes": attributes(model, optimizer),
    }


def _lacking(name: str, shape: Any) -> LabError:
    return LabError(f"the checkpoint holds {name} of shape {tuple(shape)}, which the model does not have when it is "
                    "new: make it in the model's constructor")  # fmt: skip


def _put_buffers(model: nn.Module, saved: Mapping[str, tuple[Tensor, bool]]) -> None:
    """Put a checkpoint's buffers in place, those that no `state_dict` holds, too, and leave the model no others."""
    modules, device = dict(model.named_modules()), next(p.device for p in model.parameters())
    for name in {**dict(model.named_buffers()), **saved}:
        path, _, own = name.rpartition(".")
        value, kept = saved.get(name, (None, True))
        if path not in modules:
            raise _lacking(name, getattr(value, "shape", ()))
        held = modules[path]._buffers
        now = held.get(own)
        if now is None or value is None or now.shape != value.shape or now.dtype != value.dtype or overlaps_itself(now):
            held[own] = None if value is None else value.to(device)
        else:  # in place, as others may share its memory
            now.copy_(value)
        if not kept:
            modules[path]._non_persistent_buffers_set.add(own)


def attributes(model: nn.Module, optimizer: Optimizer) -> dict[str, str]:
    """Checksums of what the user's modules, and an optimizer of theirs, hold beside tensors, modes and options."""
    walk = Walk(code=False)
    walk.known |= {id(part): (b"", part) for part in (*model.modules(), *model.parameters())}
    return {
        f"{place}.{name}".lstrip("."): walk.digest(value).hex()
        for place, owner in (*model.named_modules(), ("the optimizer", optimizer))
        if is_users(type(owner).__module__)
        for name, value in vars(owner).items()
        if name not in _PYTORCHS and not type(value).__module__.startswith("autowarm.")
    }


def warn_of_changed(before: Mapping[str, str], after: Mapping[str, str], why: str) -> None:
    """Warn of attributes that are not as they were, by name."""
    if names := sorted(name for name in {**before, **after} if before.get(name) != after.get(name)):
        text = f"{', '.join(names)}: {why}. If training depends on it, keep it in a buffer of its module"
        warnings.warn(text, stacklevel=2)


def _require_loadable(extra: Mapping[str, Any]) -> None:
    """Raise LabError for a module's extra state that `load`, which runs no code of a checkpoint, would refuse."""
    for name, value in extra.items():
        buffer = io.BytesIO()
        torch.save(value, buffer)
        buffer.seek(0)
        if refused := torch.serialization.get_unsafe_globals_in_checkpoint(buffer):
            raise LabError(
                f"{name}: a checkpoint cannot hold what this module's get_extra_state returns ({', '.join(refused)}). "
                "Let it return tensors, numbers, text, or lists and dictionaries of them"
            )


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The tensors as safetensors needs them: contiguous, and without shared memory."""
    found, places = {}, set()
    for key, value in tensors.items():
        place = (value.to_local() if isinstance(value, DTensor) else value).data_ptr()
        found[key] = value.clone(memory_format=torch.contiguous_format) if place in places else value.contiguous()
        places.add(place)
    return found


def _place_for(about: Any, param: Tensor, device: str) -> Tensor:
    """A tensor to load an optimizer's state into, sharded like its parameter if it has the same shape."""
    if about.size == param.shape and device == param.device.type:
        return torch.zeros_like(param, dtype=about.properties.dtype, requires_grad=False)
    return torch.zeros(about.size, dtype=about.properties.dtype, device=param.device if device != "cpu" else "cpu")
