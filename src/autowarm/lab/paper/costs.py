"""What is known of a run before it starts, and the hours of a figure's runs from their numbers of operations."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from ..config import LLAMA_124M, LLAMA_210M, RunConfig
from ..registry import OPTIMIZERS
from ..tasks.models import classifier, flops_per_token, llama, matrices
from ..training.parallel import PEAK_FLOPS, Ranks
from .settings import MAIN, deviations

# Seconds per layer and step that do not depend on the batch (Python, kernel launches, the optimizer), and operations
# per second. For a CPU: one core of a 2-core x86-64 cloud machine, fitted to the runs in docs/data.
_CPU_LAYER, _CPU_RATE = 2.5e-3, 15e9
# For a GPU: the share of its peak that LLaMA-124M reached on an H200 with Muon, compiled, at batch 32 (`make gpu`).
_GPU_LAYER, GPU_SHARE = 0.3e-3, 0.25
_PROBE = 2.5  # cost of a measured step in plain steps: it adds a second gradient on the batch and norms of the change
_NEWTON_SCHULZ = 5


def operations(run: RunConfig) -> float:
    """Count the multiplications and additions of one step: both passes, and Muon's orthogonalisation of a LLaMA."""
    model, size = run.model, run.batch_size
    if model.name == "swin":  # our small one sees 8×8 pixels in two stages
        return 3 * size * sum(24.0 * (stage * model.width) ** 2 * model.layers * 64 / stage**2 for stage in (1, 2))
    if model.sees_images:
        return 3 * size * 2 * 15.4e9  # Swin-B, as its authors count the multiply-adds of an image
    total = flops_per_token(model) * size * model.seq_len
    if run.optimizer.name == "muon":
        for shape, count in matrices(model):
            small, large = sorted(shape)
            total += model.layers * count * _NEWTON_SCHULZ * (4.0 * small**2 * large + 2.0 * small**3)
    return total


def hours(run: RunConfig, scale: str) -> float:
    """Estimate the hours of one CPU core, or GPU hours at scale "paper"."""
    layer, rate = (_GPU_LAYER, GPU_SHARE * PEAK_FLOPS["H200"]) if scale == "paper" else (_CPU_LAYER, _CPU_RATE)
    step = layer * run.model.layers + operations(run) / rate
    if run.engine.curvature_every:
        step *= 1 + (_PROBE - 1) / run.engine.curvature_every
    return run.steps * step / 3600


def describe(config: RunConfig, folder: Path) -> Iterator[str]:
    """Yield a line for each thing that is known of a run without training: nothing is written."""
    from autowarm.others import geometry_of, kappa_of

    from ..training.optimizers import make_optimizer

    world, accumulate = int(os.environ.get("WORLD_SIZE", 1)), config.engine.accumulate
    model, optimizer, schedule = config.model, config.optimizer, config.schedule
    yield f"run          {config.label}, in {folder}{', which exists' * folder.exists()}"
    gaps = {"f*": schedule.target_loss, "Δ'": schedule.peak_gap}
    yield (f"optimizer    {optimizer.name}, peak rate {optimizer.lr:g}, weight decay {optimizer.weight_decay:g}, "
           f"schedule {schedule.label}, {schedule.decay} decay"
           + "".join(f", {name} {value:g}" for name, value in gaps.items() if value is not None))  # fmt: skip
    if config.task is not None:
        yield f"steps        {config.steps:,}, each of the task's own batch"
        return
    share = Ranks(0, world, torch.device("cpu")).rows(config.batch_size, accumulate)
    unit = "images" if model.sees_images else f"sequences of {model.seq_len} tokens"
    order = config.seed if config.order is None else config.order
    drawn = f", drawn in epochs, order {order}" * (config.data.sampling == "epochs")
    yield (f"steps        {config.steps:,}, each of {config.batch_size} {unit}: {world} rank{'s' * (world > 1)} × "
           f"{accumulate} micro-batches of {share.stop // accumulate}{drawn}")  # fmt: skip
    with torch.device("meta"):  # without memory for the weights
        of_images = (10, (1, 8, 8)) if model.name == "swin" else (1000, (3, 224, 224))
        net = classifier(model, config.seed, *of_images) if model.sees_images else llama(model, config.seed)
    kappa = f"{optimizer.name} has no κ"
    if OPTIMIZERS[optimizer.name].norm:
        built = make_optimizer(net, optimizer)
        kappa = f"κ = {kappa_of(built, geometry_of(built)):,.0f}"
    yield f"parameters   {sum(p.numel() for p in net.parameters()):,}, {kappa}"
    if model.sees_images:
        yield f"images       {config.steps * config.batch_size:,}; {config.data.images}"
    else:
        yield f"tokens       {config.steps * config.batch_size * model.seq_len:,}; {config.data.corpus}"
    if model.label in (LLAMA_124M.label, LLAMA_210M.label) and (differ := deviations(config, MAIN)):
        yield "not the paper's: " + "; ".join(words for _, words in differ)
