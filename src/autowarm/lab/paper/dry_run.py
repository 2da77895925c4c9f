"""`autowarm train --dry-run`: what a run would need and take, before anything starts."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..config import LLAMA_124M, LLAMA_210M, RunConfig
from ..execution.display import duration
from ..registry import OPTIMIZERS
from ..tasks.models import classifier_of, llama
from ..training.parallel import PEAK_FLOPS, Ranks, peak_flops
from .costs import GPU_SHARE, forecast, memory
from .settings import MAIN, deviations

_WIDE = 256  # a model of this width is for a GPU
_IN_USE = 1.2  # measured over arithmetic, see `memory`


def describe(config: RunConfig, folder: Path, own: Any = None) -> Iterator[str]:
    """Yield a line for each thing that is known of a run without training: nothing is written.

    `own` is the source of the user's own task, if the run has one.
    """
    world = int(os.environ.get("WORLD_SIZE", 1))
    begun = ", which exists" if folder.exists() else ""
    optimizer, schedule = config.optimizer, config.schedule
    yield f"run          {config.label}, in {folder}{begun}"
    yield (f"optimizer    {optimizer.name}, peak rate {optimizer.lr:g}, weight decay {optimizer.weight_decay:g}, "
           f"schedule {schedule.label}, {schedule.decay} decay")  # fmt: skip
    yield f"steps        {config.steps:,}, each of {_batch(config, world)}"
    if own is not None or config.task is not None:
        yield "memory and time are not estimated for a task with a model and data of its own"
        return
    count, kappa = _network(config)
    yield f"parameters   {count:,}, {kappa}"
    judged = None
    if config.model.sees_images:
        yield f"images       {config.steps * config.batch_size:,}; {config.data.images}"
    else:
        tokens, judged = _data(config)
        yield tokens
    yield from _memory(config, world, count)
    yield from _times(config, world, judged, count)
    if config.model.label in (LLAMA_124M.label, LLAMA_210M.label) and (differ := deviations(config, MAIN)):
        yield "not the paper's: " + "; ".join(words for _, words in differ)


def _batch(config: RunConfig, world: int) -> str:
    if config.task is not None:
        return "the task's own batch"
    share = Ranks(0, world, torch.device("cpu")).rows(config)
    unit = "images" if config.model.sees_images else f"sequences of {config.model.seq_len} tokens"
    ranks = f"{world} rank{'s' if world > 1 else ''}"
    return (f"{config.batch_size} {unit}: {ranks} × {config.engine.accumulate} micro-batches of "
            f"{share.stop // config.engine.accumulate}")  # fmt: skip


def _network(config: RunConfig) -> tuple[int, str]:
    """The number of parameters, and the optimizer's κ if it has a geometry, without memory for the weights."""
    from autowarm.optim import geometry_of, kappa_of

    from ..training.optimizers import make_optimizer

    with torch.device("meta"):
        model = classifier_of(config.model) if config.model.sees_images else llama(config.model, config.seed)
    count = sum(p.numel() for p in model.parameters())
    if not OPTIMIZERS[config.optimizer.name].norm:
        return count, f"{config.optimizer.name} has no κ"
    optimizer = make_optimizer(model, config.optimizer)
    return count, f"κ = {kappa_of(optimizer, geometry_of(optimizer)):,.0f}"


def _data(config: RunConfig) -> tuple[str, int | None]:
    """What is known of the text, and the number of validation batches there are."""
    from ..data.shards import is_sharded, read_shards

    length, size = config.model.seq_len, config.batch_size
    read, corpus = config.steps * size * length, Path(config.data.corpus)
    judged = None
    if config.data.corpus != "python" and not corpus.is_dir():
        found = f"{corpus} is not there: autowarm data fineweb --out {corpus} makes it of FineWeb"
    elif config.data.corpus == "python" or not is_sharded(corpus):
        found = f"{config.data.corpus}, which is tokenised when the run starts"
    else:
        tokens = read_shards(corpus, config.model.vocab_size)
        train, val = len(tokens.train), len(tokens.val)
        judged = (val - 1) // length // size
        found = f"{corpus} holds {train:,} to train on, read {read / train:.2f} times, and {val:,} to judge by"
    return f"tokens       {read:,}; {found}", judged


def _memory(config: RunConfig, world: int, count: int) -> Iterator[str]:
    parts = memory(config, world, count)
    total = sum(parts.values())
    listed = ", ".join(f"{name} {_size(held)}" for name, held in parts.items() if held)
    if OPTIMIZERS[config.optimizer.name].kept is None:
        listed += f"; the state of {config.optimizer.name} is not counted"
    much = f"about {_size(_IN_USE * total)} in use" if "activations" in parts else "activations not counted"
    yield f"memory       {_size(total)} a rank by arithmetic, {much}: {listed}"
    if torch.cuda.is_available() and (there := torch.cuda.mem_get_info()[1]) < _IN_USE * total:
        yield f"             this GPU has {_size(there)}: raise engine.accumulate"


def _times(config: RunConfig, world: int, judged: int | None, count: int) -> Iterator[str]:
    peak = peak_flops()
    place = torch.cuda.get_device_name() if torch.cuda.is_available() else "H100, as there is no GPU here"
    if peak is None and (config.model.width >= _WIDE or config.model.name not in ("llama", "swin")):
        peak = PEAK_FLOPS["H100"]
    where = "one core of a CPU" if peak is None else f"{GPU_SHARE:.0%} of the peak of {world} × {place}"
    last = judged if config.whole_validation else None
    times = forecast(config, peak, world, last, count)
    whole = "" if last is None else f", the last on all {last}"
    yield f"step         {times.step * 1e3:,.0f} ms, at {where}"
    yield (f"evaluations  {times.evaluations}, of {config.eval_batches} batches{whole}: {duration(times.evaluating)} "
           "together")  # fmt: skip
    yield (f"checkpoints  {times.checkpoints}, of {_size(times.checkpoint_bytes)}: {duration(times.saving)} together, "
           "at 1 GB/s")  # fmt: skip
    yield f"whole run    {duration(times.total)}"


def _size(held: float) -> str:
    return f"{held / 2**30:.2f} GiB" if held >= 2**30 else f"{held / 2**20:.1f} MiB"
