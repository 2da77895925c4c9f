"""Checkpoints that are complete or absent, by `torch.distributed.checkpoint`.

A checkpoint is a folder of ours, `checkpoint-` and at least eight digits. It holds the tensors in safetensors files,
sharded as on the ranks, everything else in `rest.pt`, and a `manifest.json` with the run's id, the step, and the
checksums of each file and of the run's log up to the step. It is written under a hidden name and renamed when it is
complete on disk. It can be loaded on a different number of ranks. Copies, links, notes and other trainers' checkpoints
beside it are neither read nor changed.
"""

import copy
import dataclasses
import io
import itertools
import json
import logging
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import yaml
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from autowarm.rate.restore import Snapshot

from ..config import LabError, RunConfig, differences
from ..files import MARKER, claim, free, is_ours, read_object, sha256, write_atomically, write_json
from .metrics import log_checksum, read_identity, read_metrics, read_result
from .parallel import Ranks

logger = logging.getLogger(__name__)

SCHEMA = 4
_MANIFEST, _REST = "manifest.json", "rest.pt"
_NAME = re.compile(r"\.?checkpoint-(\d{8,})")  # hidden while it is being written
# What a run that begins with the checkpoint of another one may do otherwise.
_MAY_DIFFER = ("optimizer.lr", "schedule.options", "clip", "seed", "order", "checkpoint_every", "engine")
_COPY = "copy."  # the beginning of the names of what the guard goes back to


class Checkpoints:
    """The newest checkpoints of one run, in its folder, which all ranks can access. Those of others are not loaded."""

    def __init__(self, folder: Path, ranks: Ranks, run: str = "", *, keep: int = 2) -> None:
        self.folder, self.ranks, self.run, self.keep = folder, ranks, run, keep
        self._group: Any = dist.new_group(backend="gloo") if ranks.world > 1 else None  # its messages need no GPU
        if ranks.rank == 0:
            for incomplete in own_checkpoints(folder, hidden=True):  # left by a crash
                shutil.rmtree(incomplete)

    def save(
        self, step: int, model: nn.Module, optimizer: Optimizer, rest: Mapping[str, Any], guard: Any = None
    ) -> None:
        """Save a checkpoint and delete all but the newest `keep`; LabError if it cannot be written.

        `rest` is the same on all ranks. The copy of the run that the schedule's guard has is saved too, because the
        present weights may be broken already.
        """
        tensors, others = collect(model, optimizer)
        if guard is not None:
            with guard.at_copy(optimizer) as copied:
                if copied is not None:
                    copied_tensors, copied_rest = collect(model, optimizer)
                    tensors |= {f"{_COPY}{key}": value.clone() for key, value in copied_tensors.items()}
                    others["copy"] = copy.deepcopy((*copied, copied_rest))
        buffer = io.BytesIO()
        torch.save({**rest, **others}, buffer)
        scratch = self.ranks.first(lambda: self._begin(step))
        assert scratch is not None
        writer = dcp.HuggingFaceStorageWriter(str(scratch), save_distributed=True)
        with warnings.catch_warnings(action="ignore"), self._writing_to(scratch):  # DCP warns if it runs on one process
            dcp.save(_apart(tensors), storage_writer=writer, process_group=self._group, no_dist=self.ranks.world == 1)
            if self.ranks.rank:
                return
            # Every rank has written: put the checkpoint in place.
            write_atomically(scratch / _REST, buffer.getvalue())
            files = {path.name: sha256(path) for path in sorted(scratch.iterdir()) if path.name != MARKER}
            manifest = {"schema": SCHEMA, "run": self.run, "step": step, "log": log_checksum(self.folder, step)}
            write_json(scratch / _MANIFEST, {**manifest, "files": files})
            for old in own_checkpoints(self.folder):
                if step_of(old) == step:  # from a run that resumed from an older checkpoint
                    _remove(old)
            os.replace(scratch, self._place("checkpoint", step))
            for old in own_checkpoints(self.folder)[: -self.keep]:
                _remove(old)

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
            raise LabError(f"{scratch.name[1:]} cannot be written: {causes[0]} ({room} bytes are free there now); "
                           "earlier checkpoints are intact") from error  # fmt: skip

    def _begin(self, step: int) -> Path:
        scratch = self._place(".checkpoint", step)
        with self._writing_to(scratch):
            claim(scratch)
        return scratch

    def _place(self, kind: str, step: int) -> Path:
        """Return where a step's checkpoint goes: its number has more zeros where the name is taken."""
        names = (self.folder / f"{kind}-{step:0{width}d}" for width in itertools.count(8))
        return next(path for path in names if not os.path.lexists(path))

    def load(self, model: nn.Module, optimizer: Optimizer, start: Path | None = None) -> dict[str, Any] | None:
        """Load the newest intact checkpoint and return its rest; None if there is no checkpoint.

        Checkpoints that are damaged, of other runs, or of another log than the folder's are set aside, with a message.
        `start` is another run's checkpoint, to be loaded where this run has none; then the rest says that the run
        `begins` there. LabError if one is of another schema, or holds weights that a new model has not.
        """
        name = self.ranks.first(self._newest)
        path = start if name is None else self.folder / name
        if path is None:
            return None
        rest: dict[str, Any] = torch.load(path / _REST, weights_only=True)
        reader = dcp.HuggingFaceStorageReader(str(path))
        if "copy" in rest:
            update, average, copied_rest = rest["copy"]
            self._fill(model, optimizer, reader, copied_rest, _COPY)
            rest["copy"] = update, Snapshot(optimizer, model), average
        self._fill(model, optimizer, reader, rest)
        return {**rest, "begins": name is None}

    def _fill(
        self, model: nn.Module, optimizer: Optimizer, reader: Any, rest: Mapping[str, Any], prefix: str = ""
    ) -> None:
        """Put what `collect` returned into a model and an optimizer."""
        tensors: dict[str, Any] = {f"{prefix}model.{name}": p.detach() for name, p in model.named_parameters()}
        params = [p for group in optimizer.param_groups for p in group["params"]]
        for name, about in reader.read_metadata().state_dict_metadata.items():
            key = name.removeprefix(prefix) if name.startswith(prefix) else ""
            if key.startswith("optimizer."):
                param, device, dtype = params[int(key.split(".")[1])], rest["devices"][key], about.properties.dtype
                if about.size == param.shape and device == param.device.type:  # sharded as the parameter is
                    tensors[name] = torch.zeros_like(param, dtype=dtype, requires_grad=False)
                else:
                    place = param.device if device != "cpu" else "cpu"
                    tensors[name] = torch.zeros(about.size, dtype=dtype, device=place)
            elif key.startswith("model."):
                saved = torch.empty(about.size, dtype=about.properties.dtype, device="meta")
                check_alike(key.removeprefix("model."), saved, tensors.get(name))
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            dcp.load(tensors, storage_reader=reader, process_group=self._group, no_dist=self.ranks.world == 1)
        new = buffers_of(model)
        for name in {**new, **rest["buffers"]}:
            check_alike(name, rest["buffers"].get(name), new.get(name))
        model.load_state_dict(rest["buffers"], strict=False)
        states: dict[int, dict[str, Any]] = {}
        loaded = {name.removeprefix(prefix): value for name, value in tensors.items()}
        for key, value in [*loaded.items(), *rest["plain"].items()]:
            if key.startswith("optimizer."):
                _, index, field = key.split(".", 2)
                states.setdefault(int(index), {})[field] = value
        optimizer.load_state_dict({"state": states, "param_groups": rest["groups"]})

    def _newest(self) -> str | None:
        for path in reversed(own_checkpoints(self.folder)):
            if (objection := self._objection(path)) is None:
                return path.name
            logger.warning("%s %s: setting it aside and using the previous one", path, objection)
            path.rename(free(path.with_name(f"damaged-{path.name}")))
        return None

    def _objection(self, path: Path) -> str | None:
        """What is wrong with a checkpoint; None if it is intact."""
        if (manifest := intact(path)) is None:
            return "does not match its checksums"
        if (manifest["run"], manifest["step"]) != (self.run, step_of(path)):
            return f"is of update {manifest['step']} of the run {manifest['run']!r}, but this is the run {self.run!r}"
        if manifest.get("log") != log_checksum(self.folder, manifest["step"]):
            return f"does not match metrics.jsonl, which was changed or cut off before update {manifest['step']}"
        return None

    def drop(self) -> None:
        """Delete all checkpoints: optimizer states are large."""
        if self.ranks.rank == 0:
            for path in own_checkpoints(self.folder):
                _remove(path)


def own_checkpoints(folder: Path, hidden: bool = False) -> list[Path]:
    """Return the checkpoints in a run's folder that are ours, oldest first; or those that are not complete."""
    steps = {path: step for path in folder.glob(f"{'.' * hidden}checkpoint-*") if (step := step_of(path)) is not None}
    return sorted(steps, key=steps.__getitem__)


def step_of(path: Path) -> int | None:
    """Return the step of a checkpoint of ours, by its name; None for anything else."""
    name = _NAME.fullmatch(path.name)
    return int(name[1]) if name and is_ours(path) and not path.is_symlink() else None


def intact(path: Path) -> dict[str, Any] | None:
    """Return a checkpoint's manifest, or None if its files do not match it; LabError if it is of another schema."""
    try:
        manifest = read_object(path / _MANIFEST, "", "schema", "run", "step", "files")
    except LabError:
        return None
    if manifest["schema"] != SCHEMA:
        raise LabError(f"{path} has schema {manifest['schema']!r}, this version reads {SCHEMA}: delete it, or use the "
                       "version that wrote it")  # fmt: skip
    try:  # a note in the folder does no harm, but further tensors would be read
        checksums = {file.name: sha256(file) for file in path.iterdir()
                     if file.name in manifest["files"] or file.suffix == ".safetensors"}  # fmt: skip
    except (OSError, TypeError):
        return None
    return manifest if checksums == manifest["files"] and _REST in checksums else None


def resume_or_claim(folder: Path, run: str, who: dict[str, Any]) -> dict[str, Any] | None:
    """Return this run's result if it is finished; otherwise claim the folder for this run and return None."""
    if (identity := read_identity(folder)) is not None:
        if not (changed := differences(identity, who)):
            return read_result(folder, run) if (folder / "result.json").exists() else None
        # A config alone is no run: it is written before a wrong model fails.
        if (folder / "result.json").exists() or own_checkpoints(folder) or read_metrics(folder):
            listed = "; ".join(changed)
            raise LabError(f"{folder} holds another run ({listed}): choose another folder with --out, or delete it")
    write_atomically(folder / "config.yaml", yaml.safe_dump(who, sort_keys=False, allow_unicode=True))
    return None


def origin(path: Path, config: RunConfig) -> str:
    """Name the run and the update of a checkpoint with which this run may begin; LabError if it may not."""
    manifest = intact(path)
    if manifest is None:
        raise LabError(f"--resume-from {path} is no intact checkpoint: give a folder checkpoint-… in a run's folder")
    if manifest.get("log") != log_checksum(path.parent, manifest["step"]):
        raise LabError(f"--resume-from {path} does not match metrics.jsonl beside it, which has changed since: restore "
                       "that file, or give an earlier checkpoint")  # fmt: skip
    if (identity := read_identity(path.parent)) is None:
        raise LabError(f"--resume-from {path} lies in no folder of a run: its config.yaml is needed there")
    changed = differences(identity["config"], json.loads(json.dumps(dataclasses.asdict(config))))
    higher = config.optimizer.lr > identity["config"]["optimizer"]["lr"]
    if others := [one for one in changed if higher or not one.startswith(_MAY_DIFFER)]:
        raise LabError(f"--resume-from {path}: a run that goes on from there may have a lower optimizer.lr, and other "
                       f"values of {', '.join(_MAY_DIFFER[1:])}, but not {'; '.join(others)}")  # fmt: skip
    return f"update {manifest['step']} of {manifest['run']}"


def _remove(path: Path) -> None:
    """Delete a checkpoint's own files, and its folder unless it holds more. What cannot be read as ours stays."""
    with suppress(LabError, OSError):
        files = read_object(path / _MANIFEST, "", "files")["files"] if (path / _MANIFEST).exists() else ()
        inside = {file.name for file in path.iterdir()}  # a manifest can name no file elsewhere
        for name in [*files, _MANIFEST, MARKER]:  # in this order, so that a crash leaves a checkpoint of ours
            if name in inside:
                (path / name).unlink()
        path.rmdir()


def whole_weights(model: nn.Module, ranks: Ranks) -> dict[str, Tensor] | None:
    """The weights by name, each once, gathered on rank 0; None if the model holds them unsharded."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        return None
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    gathered: Any = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return {name: gathered[name] for name in names if name in gathered} if ranks.rank == 0 else {}


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The tensors as safetensors needs them: contiguous, and without shared memory."""
    separate, places = {}, set()
    for key, value in tensors.items():
        place = (value.to_local() if isinstance(value, DTensor) else value).data_ptr()
        separate[key] = value.clone(memory_format=torch.contiguous_format) if place in places else value.contiguous()
        places.add(place)
    return separate


# What it holds of a model and an optimizer.


def collect(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """What an update changes: weights and the optimizer's tensors, and everything else, which all ranks have alike."""
    state = optimizer.state_dict()
    tensors: dict[str, Any] = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    plain: dict[str, Any] = {}
    for index, values in state["state"].items():
        for name, value in values.items():
            (tensors if isinstance(value, Tensor) else plain)[f"optimizer.{index}.{name}"] = value
    devices = {key: value.device.type for key, value in tensors.items()}
    return tensors, {"groups": state["param_groups"], "plain": plain, "devices": devices, "buffers": buffers_of(model)}


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that the model's `state_dict` holds."""
    names = dict(model.named_buffers(remove_duplicate=False))
    return {name: value for name, value in model.state_dict().items() if name in names}


def check_alike(name: str, saved: Tensor | None, new: Tensor | None) -> None:
    """Check that a checkpoint and a new model hold a tensor of the same shape and dtype, or both none."""
    words = ["none" if one is None else f"{one.dtype} of shape {tuple(one.shape)}" for one in (saved, new)]
    if words[0] != words[1]:
        raise LabError(f"{name}: the checkpoint holds {words[0]}, and a new model {words[1]}: make it in the model's "
                       "constructor, in its final shape")  # fmt: skip
