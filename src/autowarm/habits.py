"""What people write out of habit where a schedule takes another argument."""

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Init = TypeVar("Init", bound=Callable[..., None])
# What people write out of habit, and what they mean.
_HABITS = {
    **dict.fromkeys(("num_training_steps", "max_steps", "T_max", "steps", "total_iters"), "total_steps"),
    **dict.fromkeys(("min_lr", "eta_min", "min_lr_ratio"), "final_ratio, a share of the peak rate"),
    **dict.fromkeys(("lr", "max_lr", "base_lr", "peak_lr", "learning_rate"), "the optimizer's lr: it is the peak rate"),
    "peak": "autowarm.find_rate, before the run? rewarm(peak=) changes the peak rate in it",
    **dict.fromkeys(("epoch", "last_epoch", "epochs"), "total_steps, in updates; a state resumes by load_state_dict"),
}  # fmt: skip


def plain_words(init: Init) -> Init:
    """Let a class that is given arguments by other names, or too many, say which ones it takes."""
    known = inspect.signature(init).parameters
    positional = sum(one.kind is one.POSITIONAL_OR_KEYWORD for one in known.values())
    open_ended = any(one.kind is one.VAR_KEYWORD for one in known.values())

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        ours, none = type(self).__name__, "the warm-up sets its own length, and AdaptiveWarmup's max_warmup= limits it"
        if len(args) >= positional and not open_ended:
            raise TypeError(f"{ours} takes (optimizer, total_steps) and then names, got {len(args)} values: {none}")
        for name in options.keys() - known.keys():
            if "warmup" in name.lower().replace("_", ""):
                raise TypeError(f"{ours} has no {name}: {none}")
            if not open_ended:
                close = difflib.get_close_matches(name, known, 1)
                meant = _HABITS.get(name) or (f"{close[0]}?" if close else f"one of {', '.join(list(known)[1:])}")
                raise TypeError(f"{ours} has no {name}: do you mean {meant}")
        init(self, *args, **options)

    return checked  # type: ignore[return-value]
