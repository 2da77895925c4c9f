"""The studies' plans, written before their runs.

- `warm_up`: the default against hand-set warm-ups, fixed shares and peers in chosen settings.
- `grid`: a full grid of settings.      - `horizon`: runs of 1,000 to 64,000 steps.
- `transfer`: fine-tuning, and fresh tasks.      - `unseen`: six more tasks.
- `lag`: shorter averages in long runs.
- `realistic`: each hand-set length at its own rate, as people train.
"""

from collections.abc import Mapping

from . import horizon, lag, realistic, transfer, unseen, warm_up

STUDIES: Mapping[str, Mapping[str, warm_up.Stage]] = {
    "warm-up": warm_up.STAGES, "horizon": horizon.STAGES,
    "fine-tuning": transfer.FINE_TUNING_STAGES, "fresh": transfer.FRESH_STAGES, "unseen": unseen.STAGES,
    "realistic": realistic.STAGES, "lag": lag.STAGES,
}  # fmt: skip
"""The stages of every study, in their order, by its name in the command."""
