"""The examples that a reader copies first: in them, the default is not the worst choice of a warm-up."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from autowarm import AdaptiveWarmup
from tests.docs.test_pages import fences

ROOT = Path(__file__).parents[2]
LAST = 50  # losses at the end, on new data, whose mean is judged
HAND_SET: dict[str, dict[str, float]] = {  # from lr/10; none rises within one update
    "none": {"max_warmup": 2, "div": 1.0001}, "10%": {"max_warmup": 0.1}, "40%": {"max_warmup": 0.4},
}  # fmt: skip
EXAMPLES = [
    "plain_loop",  # which README and the documentation's first page show
    "trainer",
    # The same network and data as in the first
    pytest.param("lightning_module", marks=pytest.mark.generated),
    pytest.param("accelerate_loop", marks=pytest.mark.generated),
]


def final_loss(example: Path, seed: int, hand_set: dict[str, float] | None, monkeypatch: pytest.MonkeyPatch) -> float:
    """Run an example with its schedule, or with a hand-set warm-up in its place, which hears no loss."""
    losses: list[float] = []
    make, observe, step = AdaptiveWarmup.__init__, AdaptiveWarmup.observe, AdaptiveWarmup.step

    def heard(loss: Any) -> Any:
        losses.append(float(loss.detach()))
        return loss if hand_set is None else 1.0

    def made(self: Any, optimizer: Any, steps: int, **options: Any) -> None:
        make(self, optimizer, steps, **options | ({} if hand_set is None else {**hand_set, "peak_limit": None}))

    with monkeypatch.context() as patched:
        patched.setattr(AdaptiveWarmup, "__init__", made)
        patched.setattr(AdaptiveWarmup, "observe", lambda self, loss, weight=1.0: observe(self, heard(loss), weight))
        patched.setattr(
            AdaptiveWarmup, "step", lambda self, loss=None: step(self, None if loss is None else heard(loss))
        )
        patched.setattr(torch, "manual_seed", lambda given, seeded=torch.manual_seed: seeded(seed))
        runpy.run_path(str(example), run_name="__main__")
    return sum(losses[-LAST:]) / LAST


@pytest.mark.long
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_default_is_not_last_in_the_examples_that_are_copied_first(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    means: dict[str, float] = {}
    for choice, hand_set in {"default": None, **HAND_SET}.items():
        losses = [final_loss(ROOT / "examples" / f"{name}.py", seed, hand_set, monkeypatch) for seed in range(5)]
        means[choice] = sum(losses) / len(losses)
        if name != "plain_loop" and means["default"] < means[choice]:
            break  # one is enough, but README has all of the first: pytest -m long -s
    print(name, means)
    assert means["default"] < max(means.values())


def test_readme_shows_the_first_example() -> None:
    (shown,) = [code for kind, code in fences(ROOT / "README.md") if kind == "python"]
    lines = {line.split("  #")[0] for line in (ROOT / "examples" / "plain_loop.py").read_text().splitlines()}
    assert {*shown.splitlines()} <= lines
