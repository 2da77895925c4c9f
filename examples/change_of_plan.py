"""What the rates do when a run is extended, shortened, stopped early or warmed up again: docs/figures/horizon.png.

python examples/change_of_plan.py
"""

from collections.abc import Callable

import matplotlib.pyplot as plt
import torch

from autowarm import AdaptiveWarmup, Lion
from autowarm._torch.plotting import GREY, styled

Change = Callable[[AdaptiveWarmup], AdaptiveWarmup | None]  # returns a schedule that takes the place of this one
CHANGES: dict[str, tuple[Change, dict[int, int]]] = {  # and where runs end, by when it comes
    "extend(200)": (lambda sched: sched.extend(200), {30: 200, 70: 200, 100: 200}),
    "extend(80)": (lambda sched: sched.extend(80), {30: 80, 70: 80}),
    "decay_now(20)": (lambda sched: sched.decay_now(20), {30: 50, 70: 90}),
    "a new schedule over the rest of 200": (
        lambda sched: AdaptiveWarmup(sched.optimizer, 200 - sched.last_epoch),
        {30: 200, 70: 200, 100: 200},
    ),
}


def rates(name: str, at: int, change: Change, end: int) -> list[float]:
    """The rates of a run of 100 updates that is changed after ``at`` of them."""
    opt = Lion([torch.nn.Parameter(torch.zeros(2, 2))], lr=1.0)
    sched = AdaptiveWarmup(opt, total_steps=100)
    seen = []
    for update in range(end):
        if update == at:
            sched = change(sched) or sched
        seen.append(opt.param_groups[0]["lr"])
        opt.step()
        sched.step(5.0)  # a loss that does not fall: the ramp alone raises the rate
    print(f"{name}, after {at} updates: warm-up took {sched.warmup_steps} of {end}")
    return seen


@styled
def main() -> None:
    figure, axes = plt.subplots(2, 2, figsize=(7.5, 4.8), sharey=True, layout="constrained")
    unchanged = rates("unchanged", 0, lambda sched: None, 100)
    for ax, (name, (change, ends)) in zip(axes.flat, CHANGES.items(), strict=True):
        ax.plot(unchanged, color=GREY, linestyle=":", label="unchanged")
        for at, end in ends.items():
            ax.plot(range(at, end), rates(name, at, change, end)[at:], label=f"after {at}")
        ax.set(title=name, xlabel="update", ylim=(0, 1.45))
        ax.legend(ncols=2)
    for ax in axes[:, 0]:
        ax.set_ylabel("rate / peak rate")
    figure.savefig("horizon.png", dpi=160)


if __name__ == "__main__":
    main()
