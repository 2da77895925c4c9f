"""What a run would cost, before it starts: its memory by arithmetic, its time from its number of operations.

`autowarm train --dry-run` prints it, and the list of figures their hours.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..config import LLAMA_124M, LLAMA_210M, ModelConfig, RunConfig
from ..execution.display import duration
from ..registry import OPTIMIZERS
from ..tasks.models import classifier_of, flops_per_token, llama, matrices, parameters, timms_word_on
from ..training.parallel import PEAK_FLOPS, Ranks, peak_flops
from .settings import MAIN, deviations

# Seconds per layer and step that do not depend on the batch (Python, kernel launches, the optimizer), and operations
# per second. For a CPU: one core of a 2-core x86-64 cloud machine, fitted to the runs in docs/data.
_CPU_LAYER, _CPU_RATE = 2.5e-3, 15e9
# For a GPU: the share of its peak that LLaMA-124M reached on an H200 with Muon, compiled, at batch 32 (`make gpu`).
_GPU_LAYER, GPU_SHARE = 0.3e-3, 0.25
_PROBE = 2.5  # cost of a measured step in plain steps: it adds a second gradient on the batch and norms of the change
_NEWTON_SCHULZ = 5
_FORWARD = 1 / 3  # of the operations of a forward and backward pass
_DISK = 1e9  # bytes per second of a checkpoint, an assumption
_WIDE = 256  # a model of this width is for a GPU
_IN_USE = 1.2  # memory measured over arithmetic, see `memory`


def _passes(run: RunConfig) -> float:
    """Count the operations of a forward and backward pass over a batch."""
    model = run.model
    if not model.sees_images:
        return flops_per_token(model) * run.batch_size * model.seq_len
    return 3.0 * run.batch_size * _forward(model)


@cache
def _forward(model: ModelConfig) -> float:
    """Count the operations of a classifier's forward pass over one image."""
    if model.name == "swin_base_patch4_window7_224":
        return 2 * 15.4e9  # as counted below, so that the list of figures needs no timm
    if model.name == "swin":  # our small one sees 8×8 pixels in two stages
        return sum(24.0 * (stage * model.width) ** 2 * model.layers * 64 / stage**2 for stage in (1, 2))
    with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
        classifier_of(model).eval()(torch.empty(1, *timms_word_on(model.name).input_size))
    return float(counter.get_total_flops())


def operations(run: RunConfig) -> float:
    """Count the multiplications and additions of one step: both passes, and Muon's orthogonalisation of a LLaMA."""
    model, total = run.model, _passes(run)
    if run.optimizer.name == "muon" and not model.sees_images:
        for shape, count in matrices(model):
            small, large = sorted(shape)
            total += model.layers * count * _NEWTON_SCHULZ * (4.0 * small**2 * large + 2.0 * small**3)
    return total


def hours(run: RunConfig, scale: str) -> float:
    """Estimate the hours of one CPU core, or GPU hours at scale "paper"."""
    step = forecast(run, PEAK_FLOPS["H200"] if scale == "paper" else None).step
    if run.engine.curvature_every:
        step *= 1 + (_PROBE - 1) / run.engine.curvature_every
    return run.steps * step / 3600


def memory(run: RunConfig, world: int = 1, count: int | None = None) -> dict[str, float]:
    """Estimate the bytes that a rank of a run needs at its peak, by what they hold.

    `benchmarks/training.py memory` measures 1.2 times as much, without `torch.compile`, which saves some of the
    activations.

    Args:
        world: number of ranks, which share weights, gradients and state under FSDP.
        count: parameters of a classifier, of which activations are not estimated; a LLaMA's are counted.
    """
    model, half = run.model, run.engine.precision in ("auto", "bfloat16")
    shared = world if run.engine.parallel == "fsdp" else 1
    rows = run.batch_size // (world * run.engine.accumulate) * model.seq_len
    count, d = count or parameters(model), model.width
    kept = count * (OPTIMIZERS[run.optimizer.name].kept or 0)
    if run.optimizer.name == "muon" and not model.sees_images:
        kept += model.vocab_size * d  # AdamW's second moment of the embedding
    held = {
        "weights": 4.0 * count / shared,
        "gradients": 4.0 * count / shared,
        "optimizer state": 4.0 * kept / shared,
        "weights in bfloat16": 2.0 * count if half else 0.0,
    }
    if model.sees_images:
        return held
    # Inputs and outputs of q, k, v, o, of gate, up and down, of their norms and of both residual sums; the norms work
    # in float32. Autocast keeps a bfloat16 copy of every weight until the backward pass is over.
    block = rows * ((2 if half else 4) * (10 * d + 4 * model.ff) + 4 * 6 * d)
    # The logits in the run's precision and in float32, the log-softmax and the gradient.
    logits = rows * model.vocab_size * ((2 if half else 0) + 4 + 4 + 4)
    return {**held, "activations": float(model.layers * block), "logits": float(logits)}


@dataclass(frozen=True)
class Forecast:
    """The time that a run takes, in seconds, and what it writes."""

    step: float  # of one update
    evaluations: int  # their number
    evaluating: float  # of all evaluations together
    checkpoints: int  # their number
    checkpoint_bytes: float  # size of one
    saving: float  # of all checkpoints together
    total: float  # of the run


def forecast(
    run: RunConfig, peak: float | None, world: int = 1, last: int | None = None, count: int | None = None
) -> Forecast:
    """Estimate the times of a run.

    Args:
        peak: operations per second of one rank's GPU, of which `GPU_SHARE` counts; None for one core of a CPU.
        last: batches of the last evaluation; None for `eval_batches`.
        count: parameters of a classifier; a LLaMA's are counted.
    """
    layer, rate = (_CPU_LAYER, _CPU_RATE) if peak is None else (_GPU_LAYER, GPU_SHARE * peak)
    step = layer * run.model.layers + operations(run) / (rate * world)
    every = run.engine.eval_every
    held = memory(run, count=count)
    checkpoints, checkpoint_bytes = -(-run.steps // run.checkpoint_every), held["weights"] + held["optimizer state"]
    evaluations = 1 + ((run.steps - 1) // every if every else 0)
    batches = (evaluations - 1) * run.eval_batches + (run.eval_batches if last is None else last)
    evaluating = batches * _FORWARD * (layer * run.model.layers + _passes(run) / (rate * world))
    saving = checkpoints * checkpoint_bytes / _DISK
    total = run.steps * step + evaluating + saving
    return Forecast(step, evaluations, evaluating, checkpoints, checkpoint_bytes, saving, total)


def describe(config: RunConfig, folder: Path) -> Iterator[str]:
    """Yield a line for each thing that is known of a run without training: nothing is written."""
    from autowarm.optim import geometry_of, kappa_of

    from ..training.optimizers import make_optimizer

    world, accumulate = int(os.environ.get("WORLD_SIZE", 1)), config.engine.accumulate
    model, optimizer, schedule = config.model, config.optimizer, config.schedule
    yield f"run          {config.label}, in {folder}{', which exists' * folder.exists()}"
    yield (f"optimizer    {optimizer.name}, peak rate {optimizer.lr:g}, weight decay {optimizer.weight_decay:g}, "
           f"schedule {schedule.label}, {schedule.decay} decay")  # fmt: skip
    if config.task is not None:
        yield f"steps        {config.steps:,}, each of the task's own batch"
        yield "memory and time are not estimated for a task with a model and data of its own"
        return
    share = Ranks(0, world, torch.device("cpu")).rows(config.batch_size, accumulate)
    unit = "images" if model.sees_images else f"sequences of {model.seq_len} tokens"
    yield (f"steps        {config.steps:,}, each of {config.batch_size} {unit}: {world} rank{'s' * (world > 1)} × "
           f"{accumulate} micro-batches of {share.stop // accumulate}")  # fmt: skip

    with torch.device("meta"):  # without memory for the weights
        net = classifier_of(model) if model.sees_images else llama(model, config.seed)
    count, kappa = sum(p.numel() for p in net.parameters()), f"{optimizer.name} has no κ"
    if OPTIMIZERS[optimizer.name].norm:
        made = make_optimizer(net, optimizer)
        kappa = f"κ = {kappa_of(made, geometry_of(made)):,.0f}"
    yield f"parameters   {count:,}, {kappa}"
    data, judged = (f"images       {config.steps * config.batch_size:,}; {config.data.images}", None)
    if not model.sees_images:
        data, judged = _tokens(config)
    yield data

    parts = memory(config, world, count)
    total = sum(parts.values())
    listed = ", ".join(f"{name} {_size(held)}" for name, held in parts.items() if held)
    if OPTIMIZERS[optimizer.name].kept is None:
        listed += f"; the state of {optimizer.name} is not counted"
    much = f"about {_size(_IN_USE * total)} in use" if "activations" in parts else "activations not counted"
    yield f"memory       {_size(total)} a rank by arithmetic, {much}: {listed}"
    if torch.cuda.is_available() and (there := torch.cuda.mem_get_info()[1]) < _IN_USE * total:
        yield f"             this GPU has {_size(there)}: raise engine.accumulate"

    peak = peak_flops()
    place = torch.cuda.get_device_name() if torch.cuda.is_available() else "H100, as there is no GPU here"
    if peak is None and (model.width >= _WIDE or model.name not in ("llama", "swin")):
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
    if model.label in (LLAMA_124M.label, LLAMA_210M.label) and (differ := deviations(config, MAIN)):
        yield "not the paper's: " + "; ".join(words for _, words in differ)


def _tokens(config: RunConfig) -> tuple[str, int | None]:
    """What is known of the text, and the number of validation batches there are."""
    from ..data.shards import is_sharded, read_shards

    length, size = config.model.seq_len, config.batch_size
    read, corpus = config.steps * size * length, Path(config.data.corpus)
    judged = None
    if config.data.corpus != "python" and not corpus.is_dir():
        found = f"{corpus} is not there: examples/make_shards.py --out {corpus} makes it of FineWeb"
    elif config.data.corpus == "python" or not is_sharded(corpus):
        found = f"{config.data.corpus}, which is tokenised when the run starts"
    else:
        tokens = read_shards(corpus, config.model.vocab_size)
        train, val = len(tokens.train), len(tokens.val)
        judged = (val - 1) // length // size
        found = f"{corpus} holds {train:,} to train on, read {read / train:.2f} times, and {val:,} to judge by"
    return f"tokens       {read:,}; {found}", judged


def _size(held: float) -> str:
    return f"{held / 2**30:.2f} GiB" if held >= 2**30 else f"{held / 2**20:.1f} MiB"
