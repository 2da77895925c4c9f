"""Thin adapters to the trainers people use: `transformers`, `lightning`, `accelerate`, each a module to import by name.

They pass the losses to `AdaptiveWarmup.observe` and log what it does with them. The schedule is the same as in a loop
of one's own. The core imports none of them.
"""

__all__ = ["accelerate", "lightning", "transformers"]


def __dir__() -> list[str]:
    return __all__
