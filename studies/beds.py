"""What the benchmark trains: small networks, each a recipe whose batches are functions of (seed, step).

- `llama-bytes`: a LLaMA on bytes; `llama` is the same on tokens, in larger batches.
- `mlp`, `cnn`, `vit`: pictures of digits.
- `recurrent`: a diagonal linear recurrence with gates, a small state-space model, on bytes.
- `lm-small`: a transformer on tokens.

A bed adds how its runs are trained: "as people train" clips gradients to 1 and decays weights by 0.1 per unit of rate.
"""

from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autowarm.lab.config import LabError, ModelConfig
from autowarm.lab.tasks.models import llama, token_loss
from autowarm.lab.tasks.recipes import Recipe, Transformer, digits, language
from autowarm.lab.tasks.small import lm_small, mlp

from .rows import PlannedRow

FORMER = "250d4937"  # the commit that holds the code of the finished studies, and of tasks that they alone trained
PEOPLE = "realistic"  # the part of the runs that are trained as people train
_BYTES = 257  # the lab's tokens of single bytes
_COMPILED = 4_000  # updates from which on a LLaMA is worth compiling


def _llama(vocab: int, sequences: int) -> Recipe:
    shape = ModelConfig(vocab_size=vocab, width=32, layers=2, heads=2, ff=85, seq_len=32)
    return language(lambda: llama(shape, int(torch.randint(2**31, ()))), vocab, sequences, token_loss)


class Patches(nn.Module):
    """(batch, 8, 8) → (batch, 16, 4)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unfold(1, 2, 2).unfold(2, 2, 2).flatten(3).flatten(1, 2)


def _vit() -> nn.Module:
    return nn.Sequential(Patches(), Transformer(4, 10, 16, width=48, depth=3, causal=False))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(24, 10),
    )  # fmt: skip


class Recurrence(nn.Module):
    """h ← a·h + (1 − a)·u along the sequence, with a gate a from the input, then a gated output and a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inward, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        u, gate, keep = self.inward(self.norm(x)).chunk(3, -1)  # each (batch, length, width)
        keep = torch.sigmoid(keep + 2.0)
        h, states = torch.zeros_like(u[:, 0]), []
        for a, new in zip(keep.unbind(1), u.unbind(1), strict=True):
            h = a * h + (1.0 - a) * new
            states.append(h)
        return x + self.out(torch.stack(states, 1) * F.silu(gate))


def _recurrent(width: int = 64) -> nn.Module:
    return nn.Sequential(
        nn.Embedding(_BYTES, width), Recurrence(width), Recurrence(width), nn.LayerNorm(width), nn.Linear(width, _BYTES)
    )


TASKS: Mapping[str, Recipe] = {
    "llama-bytes": _llama(_BYTES, sequences=4),
    "llama": _llama(512, sequences=16),
    "lm-small": lm_small.TASK,
    "mlp": mlp.TASK,
    "cnn": Recipe(_cnn, mlp.TASK.draw, lambda net, x, y: F.cross_entropy(net(x), y), mlp.TASK.validation),
    "vit": digits(_vit),
    "recurrent": language(_recurrent, _BYTES, sequences=8),
}


def task(name: str) -> Recipe:
    """The task of this name.

    Raises:
        LabError: its code is gone, or was never there.
    """
    if name not in TASKS:
        raise LabError(f"the task {name!r} went with its study, whose code is in commit {FORMER}; the tasks of today "
                       f"are {', '.join(TASKS)}")  # fmt: skip
    return TASKS[name]


def network(recipe: Recipe, seed: int, compiled: bool = False) -> nn.Module:
    """A network in training mode, with weights that depend on the seed alone.

    Compiled ones of a recipe are one network in this process, so that the first run alone compiles it.
    """
    torch.manual_seed(seed)
    model = recipe.model().train()
    if not compiled:
        return model
    shared = _shared(recipe.model)
    shared.load_state_dict(model.state_dict())
    shared.zero_grad()
    return shared


@cache
def _shared(build: Callable[[], nn.Module]) -> nn.Module:
    model = build().train()
    model.compile(dynamic=False)
    return model


def is_compiled(run: PlannedRow) -> bool:
    """Whether the network of a run is worth compiling."""
    return run.cell.task == "llama-bytes" and run.cell.steps >= _COMPILED


def decay_and_clip(run: PlannedRow) -> tuple[float, float]:
    """The weight decay, and the norm to which gradients are clipped; 0 for none."""
    return (0.1, 1.0) if run.part == PEOPLE else (0.0, 0.0)


@torch.no_grad()
def held_out_loss(recipe: Recipe, model: nn.Module) -> float:
    """The mean of the loss over the validation batches; the network is left in training mode."""
    model.eval()
    with torch.compiler.set_stance("force_eager"):  # to compile would not pay for a few batches of another shape
        losses = [float(recipe.loss(model, batch)) for batch in recipe.validation()]
    model.train()
    return sum(losses) / len(losses)
