"""The benchmark's entries: an entry is a function of at most twenty lines from a `Training` to a scheduler.

The scheduler's ``step`` is called after each update, with the loss of that update unless it is one of PyTorch's that
takes none. An entry that needs another optimizer replaces the one of the training. Anyone can add one in a file of
their own, which ``python -m studies bench --entry mine.py:name`` runs:

    def name(training):
        return LambdaLR(training.optimizer, lambda step: min(1.0, (step + 1) / 100))

Entries by their stored names, beside those of `ENTRIES`:

- "linear 0.1": a linear warm-up over 10 % of the run from 0, then a cosine.   - "tenth 0.5": the same from lr/10.
- "updates 40": the same over 40 updates from 0, then a constant rate, as in nanochat.
- "peak limit 2.5": the default with this limit of the peak, as users get it; "default" has none.
"""

import math
import runpy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from autowarm import AdaptiveWarmup
from autowarm.lab.config import OptimizerConfig, ScheduleConfig, UsageError
from autowarm.lab.training.optimizers import make_optimizer
from autowarm.lab.training.schedules import greedy, hand_set, untuned, wsd

from .beds import decay_and_clip
from .rows import PlannedRow

DEFAULT, PAPER = "default", "paper"  # of the finished studies, which have no limit of the peak
OURS = "peak limit 2.5"  # what users get
EARLIER = "earlier default"  # Δ' calibrated from κ, half of the run at most, a test of noise before the loss counts


class Training:
    """What an entry is given: the network, the run that is to be made, and the optimizer at its peak rate."""

    def __init__(self, model: nn.Module, run: PlannedRow) -> None:
        self.model, self.run, self.steps, self.lr = model, run, run.cell.steps, run.cell.lr
        self.decay, self.clip = decay_and_clip(run)
        self.optimizer: Optimizer = self.made(run.cell.optimizer, self.lr)

    def made(self, name: str, lr: float, **options: Any) -> Optimizer:
        """An optimizer of the lab for the network, with the benchmark's options or with these."""
        config = OptimizerConfig(name, lr, weight_decay=self.decay, options=options or _options(name, self.steps))
        return make_optimizer(self.model, config)


Entry = Callable[[Training], Any]


def title(schedule: str) -> str:
    """An entry's title on a page."""
    match schedule.split():
        case ["linear" | "tenth" as start, share]:
            length = f"{100 * float(share):g}%" if float(share) else "none"
            return length if start == "linear" else f"{length} from lr/10"
        case ["updates", count]:
            return f"{count} updates"
        case _ if schedule == OURS:
            return "default"
        case _:
            return "Algorithm 1" if schedule == PAPER else schedule


def find(schedule: str) -> Entry:
    """The entry of this name, or in this file: FILE.py:NAME.

    Raises:
        UsageError: there is none.
    """
    file, _, name = schedule.rpartition(":")
    if file:
        if not Path(file).is_file() or not callable(entry := runpy.run_path(file).get(name)):
            raise UsageError(f"no entry {schedule!r}: name a function in a Python file, FILE.py:NAME")
        return entry
    match schedule.split():
        case ["linear" | "tenth" as start, share]:
            return lambda training: by_hand(training, round(float(share) * training.steps), start == "tenth")
        case ["updates", count]:
            return lambda training: by_hand(training, int(count), decay="wso")
        case ["peak", "limit", most]:
            return lambda training: limited(training, float(most))
        case _ if schedule in ENTRIES:
            return ENTRIES[schedule]
    raise UsageError(f"no entry {schedule!r}: give {', '.join(ENTRIES)}, 'linear SHARE', 'tenth SHARE', 'updates N' or "
                     "FILE.py:NAME")  # fmt: skip


def by_hand(training: Training, length: int, from_tenth: bool = False, decay: str = "cosine") -> LambdaLR:
    """A linear warm-up over so many updates, then a decay."""
    div = 10.0 if from_tenth else None
    found = LambdaLR(training.optimizer, lambda step: hand_set(step, length, training.steps, div, decay=decay))
    found.warmup_steps = length  # type: ignore[attr-defined]  # for the row
    return found


def default(training: Training) -> AdaptiveWarmup:
    """Ours, with no limit of the peak. It watches for spikes, which changes no rate; the row counts the alarms."""
    return limited(training, None)


def limited(training: Training, most: float | None) -> AdaptiveWarmup:
    """Ours with a limit of the peak."""
    return AdaptiveWarmup(training.optimizer, training.steps, recover="warn", peak_limit=most)


def paper(training: Training) -> AdaptiveWarmup:
    """Algorithm 1, which is told f*."""
    if (target := training.run.target_loss) is None:
        raise UsageError("paper needs f*, the target loss of a planned run, and this plan gives none")
    return AdaptiveWarmup.paper(training.optimizer, training.steps, target_loss=target)


def radam(training: Training) -> LambdaLR:
    """RAdam, which needs no warm-up, in place of AdamW; a cosine."""
    training.optimizer = training.made("radam", training.lr, betas=_options("adamw", training.steps)["betas"])
    return by_hand(training, 0)


def prodigy(training: Training) -> LambdaLR:
    """Prodigy, which finds its rate itself; a cosine."""
    training.optimizer = training.made("prodigy", 1.0)
    return by_hand(training, 0)


def schedule_free(training: Training) -> LambdaLR:
    """ScheduleFree+ with a warm-up of 5 % of the run, as its authors advise; the cell's rate is a factor on its own."""
    training.optimizer = ScheduleFreePlus(training.model.parameters(), lr=training.lr)
    return by_hand(training, training.steps // 20, decay="wso")


def schedule_free_ours(training: Training) -> AdaptiveWarmup:
    """ScheduleFree+ with our warm-up."""
    training.optimizer = ScheduleFreePlus(training.model.parameters(), lr=training.lr)
    return AdaptiveWarmup(training.optimizer, training.steps, decay="wso")


def _of_the_lab(make: Callable[..., Any]) -> Entry:
    return lambda training: make(training.optimizer, ScheduleConfig("linear", 0), training.steps)


ENTRIES: Mapping[str, Entry] = {
    DEFAULT: default,
    PAPER: paper,
    "greedy": _of_the_lab(greedy),
    "wsd": _of_the_lab(wsd),
    "untuned": _of_the_lab(untuned),
    "radam": radam,
    "prodigy": prodigy,
    "schedule-free+": schedule_free,
    "schedule-free+ ours": schedule_free_ours,
}


def _options(optimizer: str, steps: int) -> dict[str, Any]:
    """A momentum remembers 2 % of the run, within bounds: half of it would test no warm-up (see the diary)."""

    def beta(longest: float, shortest: float = 10) -> float:
        return 1 - 1 / min(longest, max(shortest, 0.02 * steps))

    options: dict[str, dict[str, Any]] = {
        "muon": {"momentum": beta(20), "heads": []},  # every matrix by Muon, the last layer too
        "lion": {"betas": [0.9, beta(100, shortest=20)]},
        "signsgd": {"momentum": beta(10)},
        "normsgd": {"momentum": beta(20)},
        "adamw": {"betas": [0.9, beta(1000)], "fused": True},
    }
    return options.get(optimizer, {})


class ScheduleFreePlus(Optimizer):
    """ScheduleFree+ (arXiv 2605.19095) with the constants of its authors' code, without weight decay.

    Adam moves z, with a Polyak step: the rate is lr·max(0, f(y) + β⟨g, z − x⟩)/(√(π/2)·‖g‖₁). The gradient g is taken
    at y = βx + (1 − β)z, and x, the average of z weighted by the square of the highest rate so far, is what is judged.
    The average starts when the warm-up ends: until then x = y = z. The loss f(y) is set as `loss` before `step`.
    """

    loss: float | Tensor = 0.0

    def __init__(self, params: Any, lr: float = 1.0, betas: tuple[float, float] = (0.9, 0.95), beta: float = 0.9,
                 eps: float = 1e-8) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "beta": beta, "eps": eps, "initial_lr": lr})
        self.updates, self.warm, self.highest, self.weights = 0, False, 0.0, 0.0

    def _each(self) -> Iterator[tuple[dict[str, Any], Tensor, Tensor, dict[str, Tensor]]]:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    if not self.state[p]:
                        self.state[p] = {"x": p.detach().clone(), "z": p.detach().clone(),
                                         "mean": torch.zeros_like(p), "square": torch.zeros_like(p)}  # fmt: skip
                    yield group, p, p.grad, self.state[p]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update; all groups share their rate."""
        first = self.param_groups[0]
        self.updates += 1
        height, size = float(self.loss), 0.0
        for group, _, grad, state in self._each():
            height += group["beta"] * float((grad * (state["z"] - state["x"])).sum())
            size += math.sqrt(math.pi / 2) * float(grad.abs().sum())
        rate = first["lr"] * max(0.0, height) / size if size else 0.0
        self.highest = max(self.highest, rate)
        self.warm |= first["lr"] >= (1 - 1e-6) * first["initial_lr"]
        self.weights += self.highest**2 if self.warm else 0.0
        share = self.highest**2 / self.weights if self.weights else 1.0
        for group, p, grad, state in self._each():
            moments = []
            for name, new, decay in zip(("mean", "square"), (grad, grad.square()), group["betas"], strict=True):
                moments.append(state[name].lerp_(new, 1 - decay) / (1 - decay**self.updates))
            state["z"].sub_(rate * moments[0] / (moments[1].sqrt() + group["eps"]))
            state["x"].lerp_(state["z"], share)
            p.copy_(torch.lerp(state["z"], state["x"], group["beta"]))

    @torch.no_grad()
    def eval(self) -> None:
        """Put x into the weights; the lab's `evaluating` keeps y and puts it back."""
        for p, state in self.state.items():
            p.copy_(state["x"])

    def train(self) -> None:
        """Nothing: see `eval`."""
