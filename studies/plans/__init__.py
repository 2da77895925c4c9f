"""The studies' plans, written before their runs.

- `warm_up`: the default against hand-set warm-ups, fixed shares and peers in chosen settings.
- `grid`: a full grid of settings.      - `horizon`: runs of 1,000 to 64,000 steps.
- `transfer`: fine-tuning, and fresh tasks.      - `realistic`: each hand-set length at its own rate, as people train.
"""

from collections.abc import Mapping

from . import horizon, realistic, transfer, warm_up

STUDIES: Mapping[str, Mapping[str, warm_up.Stage]] = {
    "warm-up": warm_up.STAGES, "horizon": horizon.STAGES,
    "fine-tuning": transfer.FINE_TUNING_STAGES, "fresh": transfer.FRESH_STAGES, "realistic": realistic.STAGES,
}  # fmt: skip
"""The stages of every study, in their order, by its name in the command."""
