"""Thin adapters for `transformers`, `lightning` and `accelerate`. Import the module for your trainer.

They pass the trainer's losses to `AdaptiveWarmup.observe` and log the schedule. The schedule is the same as in your own
training loop. The rest of the library imports none of them.
"""

from typing import Any, NoReturn

__all__ = ["accelerate", "lightning", "transformers"]


def find_rate(*given: Any, **options: Any) -> NoReturn:
    """Say how to search with a trainer's own loss."""
    raise TypeError(
        "a trainer has no search of its own: call autowarm.find_rate(model, optimizer, closure), where closure() takes "
        "the next batch's loss, by Trainer.compute_loss(model, batch) or LightningModule.training_step(batch, 0), "
        "calls its backward() and returns it"
    )
