"""What a run costs, in hours, before it is made: a count of its operations over a rate that was measured or assumed."""

from ..config import RunConfig
from ..tasks.models import flops_per_token

# One core of a 2-core x86-64 cloud machine, fitted to the runs in docs/data: seconds per layer and step that do not
# depend on the batch (Python, kernel launches, the optimizer), and operations per second.
_CPU_LAYER, _CPU_RATE = 2.5e-3, 15e9
# An H200: 40 % of its 989 dense bfloat16 TFLOP/s. An assumption, not a measurement.
_GPU_LAYER, _GPU_RATE = 0.3e-3, 0.4 * 989e12
_PROBE = 2.5  # a measured step: another gradient on the same batch, and the norms of the difference
_NEWTON_SCHULZ = 5


def operations(run: RunConfig) -> float:
    """Multiplications and additions of one step: forward, backward, and Muon's orthogonalisation."""
    model = run.model
    if model.sees_images:
        # A Swin-B takes 15.4e9 multiply-adds an image; our small one sees 8×8 pixels in two stages.
        small = sum(12 * (stage * model.width) ** 2 * model.layers * 64 / stage**2 for stage in (1, 2))
        return 6.0 * run.batch_size * (small if model.name == "swin" else 15.4e9)
    total = flops_per_token(model) * run.batch_size * model.seq_len
    if run.optimizer.name == "muon":
        for rows, columns, count in ((model.width, model.width, 4), (model.ff, model.width, 3)):
            small, large = min(rows, columns), max(rows, columns)
            total += model.layers * count * _NEWTON_SCHULZ * (4.0 * small**2 * large + 2.0 * small**3)
    return total


def hours(run: RunConfig, scale: str, probed: int | None = None) -> float:
    """CPU hours of one core at scale "tiny", GPU hours at "paper".

    Args:
        run: the run.
        scale: which of the two machines.
        probed: curvature is measured at every so many steps.
    """
    layer, rate = (_CPU_LAYER, _CPU_RATE) if scale == "tiny" else (_GPU_LAYER, _GPU_RATE)
    step = layer * run.model.layers + operations(run) / rate
    if probed:
        step *= 1 + (_PROBE - 1) / probed
    return run.steps * step / 3600
