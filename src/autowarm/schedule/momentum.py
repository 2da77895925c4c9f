"""A warm-up of the momentum beside that of the rate."""

from typing import Any

from torch.optim import Optimizer

from .core import Plan, State


class Momentum:
    """Takes the momentum of an optimizer's groups, or their first β, from one value to the next with the rate.

    Args:
        values: at the start of a warm-up, at the peak rate and, if there is a third one, at a rate of 0.
        optimizer: if some groups have a ``momentum``, and no β, only those are written; otherwise each first β is.

    Raises:
        ValueError: a value is not in [0, 1), no group has a momentum, or updates may be replays of a captured graph.
    """

    def __init__(self, values: Any, optimizer: Optimizer) -> None:
        given = tuple(values) if isinstance(values, tuple | list) else ()
        plain = all(isinstance(x, int | float) and not isinstance(x, bool) and 0 <= x < 1 for x in given)
        if len(given) not in (2, 3) or not plain:
            need = "momentum is (at the start, at the peak) or (at the start, at the peak, at the end), in [0, 1)"
            raise ValueError(f"{need}, got {values!r}")
        if any(group.get("capturable") for group in optimizer.param_groups):
            raise ValueError(f"momentum={values!r} cannot reach the replays of a captured graph (capturable=True)")
        self.values, self.now, self._optimizer = [float(x) for x in given], float(given[0]), optimizer
        kinds = {_kind(group) for group in optimizer.param_groups}
        self._kind = "momentum" if "momentum" in kinds else "betas"
        if self._kind not in kinds:
            kind = type(optimizer).__name__
            raise ValueError(f"momentum={values!r}: the groups of {kind} have no momentum and no betas. Leave it out")

    def write(self, plan: Plan, state: State) -> None:
        """Set every group's momentum for the next update."""
        first, peak, *last = self.values
        if state.ended_by is None:
            self.now = first + (peak - first) * max(0.0, state.share * plan.div - 1.0) / (plan.div - 1.0)
        else:
            self.now = peak + (last[0] - peak) * (1.0 - state.share) if last else peak
        for group in self._optimizer.param_groups:
            if _kind(group) == self._kind:
                group[self._kind] = self.now if self._kind == "momentum" else (self.now, *group["betas"][1:])


def _kind(group: dict[str, Any]) -> str | None:
    """The key of a group's momentum. Our Lion has betas, and a ``momentum`` that is not used."""
    return next((key for key in ("betas", "momentum") if key in group), None)
