"""A model inside torch.compile, DDP or activation checkpointing is sorted as the plain one."""

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from autowarm.optim import partition
from tests.cases import each
from tests.optim.known.test_partition import llama


class Deep(nn.Module):
    """Its blocks hold a layer called "output", and its head is a sequence."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 16)
        block = nn.ModuleDict({"up": nn.Linear(16, 32), "output": nn.Linear(32, 16)})
        self.blocks = nn.ModuleList(copy.deepcopy(block) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 4))


def wrapped_inside(wrap: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], nn.Module]:
    """As people compile or checkpoint each block by itself."""

    def wrap_children(model: nn.Module) -> nn.Module:
        for module in [*model.modules()]:
            for name, child in [*module.named_children()]:
                if not isinstance(child, nn.ModuleList | nn.ModuleDict):
                    setattr(module, name, wrap(child))
        return model

    return wrap_children


WRAPPERS = {"compiled": torch.compile, "data parallel": nn.DataParallel,
            "compiled, data parallel": lambda model: nn.DataParallel(torch.compile(model)),
            "compiled inside": wrapped_inside(torch.compile),
            "checkpointed inside": wrapped_inside(checkpoint_wrapper)}  # fmt: skip
MODELS = {"one block": lambda: Deep(1), "two blocks": lambda: Deep(2), "llama": lambda: llama(False),
          "sequence": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
          "several heads": lambda: nn.ModuleDict({"body": nn.Linear(4, 8), "heads": nn.ModuleList(nn.Linear(8, 2) for _ in range(2))})}  # fmt: skip # noqa: E501


@each("make", MODELS.values())
@each("wrap", WRAPPERS.values())
def test_a_wrapper_changes_no_role(make: Callable[[], nn.Module], wrap: Callable[[nn.Module], nn.Module]) -> None:
    inserted = {"module", "_orig_mod", "_checkpoint_wrapped_module"}

    def roles(model: nn.Module) -> dict[str, list[str]]:
        plain = {part: named for part, named in vars(partition(model)).items() if isinstance(named, list)}
        return {
            part: [".".join(own for own in name.split(".") if own not in inserted) for name, _ in named]
            for part, named in plain.items()
        }

    assert roles(wrap(make())) == roles(make())
