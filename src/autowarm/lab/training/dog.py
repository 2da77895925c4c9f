"""DoG from its authors' package, `dog-optimizer`, judged at the average of its weights, as they advise."""

import copy
from typing import Any, Self

from dog import DoG, PolynomialDecayAverager
from torch import nn

from .optimizers import groups


class AveragedDoG(DoG):
    """DoG with its polynomial average of the model's weights and buffers, which checkpoints hold.

    DoG finds its rate as a distance from the first weights over a root of summed gradients (Ivgi et al., 2023). It has
    no decay: the average takes its place.

    Args:
        model: the network whose weights and buffers are averaged.
        params: its parameters. Each group finds a rate of its own.
        options: further arguments of `dog.DoG`.
    """

    def __init__(self, model: nn.Module, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        self._model, self._averager = model, PolynomialDecayAverager(model)
        self._training: dict[str, Any] | None = None

    @classmethod
    def from_model(cls, model: nn.Module, lr: float, weight_decay: float, **options: Any) -> Self:
        """Make it for a model; without weight decay all weights share one rate, as in its paper."""
        everything = [{"params": list(model.parameters()), "weight_decay": 0.0}]
        return cls(model, groups(model, weight_decay) if weight_decay else everything, lr=lr, **options)

    def step(self, closure: Any = None) -> Any:
        """Make one update and take the new weights into the average."""
        loss = super().step(closure)
        self._averager.step()
        return loss

    def eval(self) -> None:
        """Put the average into the model."""
        self._training = copy.deepcopy(self._model.state_dict())
        self._model.load_state_dict(self._averager.averaged_model.state_dict())

    def train(self) -> None:
        """Put back the weights of training."""
        if self._training is not None:
            self._model.load_state_dict(self._training)
            self._training = None

    def state_dict(self) -> dict[str, Any]:
        """DoG keeps its own state in the groups; the average joins it there."""
        state = super().state_dict()
        del state["state"]["_first_step"]  # not the state of a parameter; the groups tell it
        state["param_groups"][0]["average"] = self._averager.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        first, *others = state_dict["param_groups"]
        own = {key: value for key, value in first.items() if key != "average"}
        super().load_state_dict({"state": {"_first_step": "init_buffer" not in first}, "param_groups": [own, *others]})
        self._averager.load_state_dict(first["average"])
