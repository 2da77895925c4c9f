"""Does curvature fall with the gap? Measured along a run of a small network, in a plain loop.

Two lines belong to the probe. About a minute on one core; ``python examples/smoothness.py [STEPS]``.
"""

import sys

import torch
from torch import nn

from autowarm import AdaptiveWarmup, Muon
from autowarm.lab.paper.study import plot_study, study
from autowarm.smoothness import Probe


def main(steps: int = 1500) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(20, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)
    )
    teacher = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 10)).requires_grad_(False)
    opt = Muon.from_model(model, lr=3e-3)
    sched = AdaptiveWarmup(opt, total_steps=steps)
    probe = Probe(model, opt, every=5)  # line one

    for step in range(steps):
        x = torch.randn(128, 20)
        labels = (8 * teacher(x)).argmax(1)

        def closure(x: torch.Tensor = x, labels: torch.Tensor = labels) -> torch.Tensor:
            loss = nn.functional.cross_entropy(model(x), labels)
            loss.backward()
            return loss

        with probe(closure) as loss:  # line two: runs the closure, and after the step once more
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        sched.step(loss)
        opt.zero_grad()
        if step % 250 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}  rate {sched.get_last_lr()[0]:.2e}")

    last = probe.points[-1]
    print(f"last step: K = {last.smoothness:.3g}, along the step {last.curvature_by_slopes:.3g}, η⋆ = {last.best_rate}")
    found = study(probe.points, target_loss=0.0)
    print(found)
    try:
        axes = plot_study(found)
    except ImportError as error:
        print(error)
    else:
        axes.figure.savefig("smoothness.png", dpi=150)
        print("drawn in smoothness.png")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
