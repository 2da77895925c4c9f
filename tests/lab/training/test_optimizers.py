import pytest
import torch

from autowarm.lab.config import LabError, OptimizerConfig
from autowarm.lab.training.optimizers import make_optimizer


def test_options_that_the_optimizer_does_not_know_are_named() -> None:
    with pytest.raises(LabError, match="do not suit normsgd"):
        make_optimizer(torch.nn.Linear(2, 2), OptimizerConfig(name="normsgd", options={"betas": [0.9, 0.9]}))
