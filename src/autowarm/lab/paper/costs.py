"""Estimates a run's cost in hours: its number of operations divided by a measured or assumed rate."""

from ..config import RunConfig
from ..tasks.models import flops_per_token

# Seconds per layer and step that do not depend on the batch (Python, kernel launches, the optimizer), and operations
# per second. For a CPU: one core of a 2-core x86-64 cloud machine, fitted to the runs in docs/data.
_CPU_LAYER, _CPU_RATE = 2.5e-3, 15e9
# For an H200: 40 % of its 989 dense bfloat16 TFLOP/s, an assumption and not a measurement.
_GPU_LAYER, _GPU_RATE = 0.3e-3, 0.4 * 989e12
_PROBE = 2.5  # cost of a measured step in plain steps: it adds a second gradient on the batch and norms of the change
_NEWTON_SCHULZ = 5


def operations(run: RunConfig) -> float:
    """Count the multiplications and additions of one step: forward, backward and Muon's orthogonalisation."""
    model = run.model
    if model.sees_images:
        # A Swin-B takes 15.4e9 multiply-adds per image; our small Swin sees 8×8 pixels in two stages.
        small = sum(12 * (stage * model.width) ** 2 * model.layers * 64 / stage**2 for stage in (1, 2))
        return 6.0 * run.batch_size * (small if model.name == "swin" else 15.4e9)
    total = flops_per_token(model) * run.batch_size * model.seq_len
    if run.optimizer.name == "muon":
        for rows, columns, count in ((model.width, model.width, 4), (model.ff, model.width, 3)):
            small, large = min(rows, columns), max(rows, columns)
            total += model.layers * count * _NEWTON_SCHULZ * (4.0 * small**2 * large + 2.0 * small**3)
    return total


def hours(run: RunConfig, scale: str, probed: int | None = None) -> float:
    """Estimate the hours of one CPU core, or GPU hours at scale "paper".

    Args:
        run: the run.
        scale: "tiny", "horizon" or "paper".
        probed: number of steps from one curvature measurement to the next; None if there are none.
    """
    layer, rate = (_GPU_LAYER, _GPU_RATE) if scale == "paper" else (_CPU_LAYER, _CPU_RATE)
    step = layer * run.model.layers + operations(run) / rate
    if probed:
        step *= 1 + (_PROBE - 1) / probed
    return run.steps * step / 3600
