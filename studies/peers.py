"""ScheduleFree+ and WSD with our warm-up in place of their own, beside the other peers of `plans.warm_up`.

    python -m studies.peers            make what is left, one run at a time, and store a row as each finishes
    python -m studies.peers --list     say what is left

ScheduleFree+ (Defazio 2026, arXiv 2605.19095) finds its rate by itself and has a factor on it, whose warm-up is set by
hand. It takes the place of AdamW in the settings of at least 1,000 updates in which the other peers do, with the
factor, of five from 0.01 to 1, that is best on the tuning seed under its own warm-up:

- "own": the factor rises linearly over 5 % of the run, as with Schedule-Free, then stays;
- "ours": the factor follows the default's warm-up, then stays.

"ours wsd" is the peer WSD with our warm-up in place of 10 % of the run; both fall over the last fifth of the run.
About a quarter of an hour of a CPU; the seeds of the test come one after the other, and those that are complete count.
(0.3, 1 and 3 were planned first; the lower factors were added when 0.3 was best of them.)

Judged by a rule written before the first run: as all peers, by the regret less the default's on the test seeds, in the
mean over the settings. Our warm-up replaces a peer's own if it costs at most 0.1 % of the progress more in the mean and
no setting more than 0.5 %.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from autowarm import AdaptiveWarmup
from autowarm.lab import registry
from autowarm.lab.config import OptimizerConfig, ScheduleConfig
from autowarm.lab.training.setup import Setup

from .cells import SEEDS, TUNING_SEED, peer_cells, scheduled_cells, tuned_rates
from .in_process import go_on, trained
from .rows import Cell, PlannedRow, Row, Rows
from .runs import run_of

PLUS, OWN, OURS, WSD = "schedule-free+", "own", "ours", "ours wsd"
FACTORS = (0.01, 0.03, 0.1, 0.3, 1.0)
STUDY, ROWS = (Path(f"docs/data/studies/{name}.jsonl") for name in ("warm-up", "peers"))
_SHORTEST = 1_000  # updates; the page does not judge by shorter runs
_FALL = 0.2  # the share of the run over which the peer WSD falls


class ScheduleFreePlus(torch.optim.Optimizer):
    """ScheduleFree+ with the constants of its authors' code, without weight decay.

    Adam moves z, with a Polyak step: the rate is lr·max(0, f(y) + β⟨g, z − x⟩)/(√(π/2)·‖g‖₁). The gradient g is taken
    at y = βx + (1 − β)z, and x, the average of z weighted by the square of the highest rate so far, is what is judged.
    The average starts when the warm-up ends: until then x = y = z.

    The loss f(y) of an update is set as `loss` before `step`.
    """

    loss: float | Tensor

    def __init__(
        self, params: Any, lr: float = 1.0, betas: tuple[float, float] = (0.9, 0.95), beta: float = 0.9,
        eps: float = 1e-8,
    ) -> None:  # fmt: skip
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
            decays = group["betas"]
            state["mean"].lerp_(grad, 1 - decays[0])
            state["square"].lerp_(grad.square(), 1 - decays[1])
            mean, square = (state[name] / (1 - beta**self.updates)
                            for name, beta in zip(("mean", "square"), decays, strict=True))  # fmt: skip
            state["z"].sub_(rate * mean / (square.sqrt() + group["eps"]))
            state["x"].lerp_(state["z"], share)
            p.copy_(torch.lerp(state["z"], state["x"], group["beta"]))

    @torch.no_grad()
    def eval(self) -> None:
        """Put x into the weights; `evaluating` keeps y and puts it back."""
        for p, state in self.state.items():
            p.copy_(state["x"])

    def train(self) -> None:
        """Nothing: see `eval`."""


def wsd(optimizer: torch.optim.Optimizer, config: ScheduleConfig, steps: int) -> AdaptiveWarmup:
    """Our warm-up, then the peer's WSD: the peak rate, and 1 − √p over the last fifth of the run."""
    made: list[AdaptiveWarmup] = []

    def fall(p: float) -> float:
        start = made[0].warmup_steps if made and made[0].phase == "decay" else 0
        left = (1.0 - p) * (1.0 - start / steps)  # a share of the run
        return 1.0 - math.sqrt(max(0.0, 1.0 - left / _FALL))

    made.append(AdaptiveWarmup(optimizer, total_steps=steps, decay=fall))
    return made[0]


@contextmanager
def known() -> Iterator[None]:
    """In here the lab knows the peers by their names, and tells an optimizer the loss of its update."""
    original = Setup.forward_backward

    def telling(setup: Any, pieces: Any) -> Tensor:
        setup.optimizer.loss = loss = original(setup, pieces)
        return loss

    here = __name__
    optimizer = registry.Optimizer("ScheduleFree+", f"{here}:ScheduleFreePlus", rate_free=True, kept=4)
    schedule = registry.Schedule("is WSD with our warm-up", f"{here}:wsd", ours=True, watches=True)
    with (
        mock.patch.dict(registry.OPTIMIZERS, {PLUS: optimizer}),
        mock.patch.dict(registry.SCHEDULES, {WSD: schedule}),
        mock.patch.object(Setup, "forward_backward", telling),
    ):
        yield


def made(planned: PlannedRow) -> Row:
    """Make a run in this process; its row says how many seconds of a CPU it took."""
    steps = planned.cell.steps
    schedule = {
        OWN: ScheduleConfig("linear", steps // 20, decay="wso"), OURS: ScheduleConfig(decay="wso"),
        WSD: ScheduleConfig(WSD),
    }[planned.schedule]  # fmt: skip
    with known():
        like = replace(planned, cell=replace(planned.cell, optimizer="adamw") if _is_plus(planned) else planned.cell)
        config = replace(run_of(replace(like, schedule="default")), schedule=schedule)
        if _is_plus(planned):
            config = replace(config, optimizer=OptimizerConfig(PLUS, planned.cell.lr))
        return trained(planned, config)


def _is_plus(planned: PlannedRow) -> bool:
    return planned.cell.optimizer == PLUS


def instead(study: Rows) -> list[Cell]:
    """The cells of AdamW that ScheduleFree+ replaces, from the rows of the warm-up study."""
    return [*dict.fromkeys(ours for _, ours in peer_cells(study) if ours.steps >= _SHORTEST)]


def grid(study: Rows) -> list[Cell]:
    """Every factor in each of these settings."""
    return [replace(cell, optimizer=PLUS, lr=factor) for cell in instead(study) for factor in FACTORS]


def tuned(study: Rows, rows: Rows) -> list[Cell]:
    """ScheduleFree+ at its best factor, in the order of `instead`."""
    return [Cell(*key, lr) for key, lr in tuned_rates(rows, grid(study), OWN).items()]


def plan(study: Rows, rows: Rows, seeds: Sequence[int] = SEEDS.test) -> list[PlannedRow]:
    """All runs that these rows allow to plan: those of the test, seed by seed, once the factors are tuned."""
    found = [PlannedRow("tuning", cell, OWN, TUNING_SEED) for cell in grid(study)]
    if any(run not in rows for run in found):
        return found
    for seed in seeds:
        found += [PlannedRow("peers", cell, name, seed) for name in (OWN, OURS) for cell in tuned(study, rows)]
        found += [PlannedRow("peers", cell, WSD, seed) for cell in scheduled_cells(study) if cell.steps >= _SHORTEST]
    return found


def finished(study: Rows, rows: Rows) -> list[int]:
    """The seeds of the test on which every run has been made."""
    return [seed for seed in SEEDS.test if {*plan(study, rows, [seed])} <= {*map(PlannedRow.of, rows)}]


def main(argv: Sequence[str] | None = None, make: Callable[[PlannedRow], Row] = made) -> None:
    """Make the missing runs, or list them."""
    study = Rows.load(STUDY)
    go_on(__doc__, argv, ROWS, partial(plan, study), make)


if __name__ == "__main__":
    main()
