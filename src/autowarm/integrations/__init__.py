"""Thin adapters for `transformers`, `lightning` and `accelerate`. Import the module for your trainer.

They pass the trainer's losses to `AdaptiveWarmup.observe` and log the schedule. The schedule is the same as in your own
training loop. The rest of the library imports none of them.
"""

__all__ = ["accelerate", "lightning", "transformers"]


def __dir__() -> list[str]:
    return __all__
