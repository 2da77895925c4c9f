"""A model that holds several models has the output layers of each."""

import copy
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn

from autowarm.optim import partition
from tests.cases import each
from tests.optim.known.test_partition import Held, Holder, llama, names


class Bytes(nn.Module):
    """A language model as people write it by hand, over as many tokens as it is wide, or not."""

    def __init__(self, width: int = 16, vocabulary: int = 48, tied: bool = False) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Parameter(torch.zeros(8, width))
        block = nn.ModuleDict({"up": nn.Linear(width, 2 * width), "output": nn.Linear(2 * width, width)})
        self.blocks = nn.ModuleList(copy.deepcopy(block) for _ in range(2))
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight


class Classifier(nn.Module):
    def __init__(self, width: int = 12, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3)
        self.body = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)


def mlp(*sizes: int) -> nn.Sequential:
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(False)


# What is held, as it is called; each model alone has an output layer of its own.
MODELS: dict[str, Callable[[], dict[str, nn.Module]]] = {
    "student and teacher": lambda: {"student": llama(False), "teacher": llama(False)},
    "student and frozen teacher": lambda: {"student": Bytes(), "teacher": frozen(Bytes(32))},
    "a teacher of another kind": lambda: {"student": mlp(20, 16, 5), "teacher": frozen(Classifier())},
    "model and average": lambda: {"model": Bytes(), "ema": frozen(Bytes())},
    "policy and reference": lambda: {"policy": Bytes(48), "reference": frozen(Bytes(48))},
    "policy, tied, and value": lambda: {"policy": Bytes(tied=True), "value": mlp(16, 16, 3)},
    "online and target": lambda: {"online": mlp(8, 16, 4), "target": frozen(mlp(8, 16, 4))},
    "online and target, square": lambda: {"q_net": mlp(8, 16, 8), "target_net": mlp(8, 16, 8)},
    "twin critics": lambda: {"critic1": mlp(11, 16, 25), "critic2": mlp(11, 16, 25)},
    "actor and twin critics": lambda: {"actor": mlp(8, 16, 8), "q1": mlp(16, 12, 25), "q2": mlp(16, 12, 25)},
    "actor and critic": lambda: {"actor": mlp(8, 16, 3), "critic": mlp(8, 16, 2)},
    "networks of a GAN": lambda: {"generator": mlp(4, 16, 20), "discriminator": mlp(20, 16, 2)},
    "networks of a GAN, in short": lambda: {"netG": mlp(4, 16, 20), "netD": mlp(20, 16, 2)},
    "two towers": lambda: {"image": Classifier(), "text": Bytes()},
    "two towers of layers": lambda: {"users": mlp(30, 16, 6), "ads": mlp(40, 16, 6)},
    "two towers of one width": lambda: {"query": mlp(12, 16, 16), "doc": mlp(20, 16, 16)},
    "two transformers": lambda: {"large": Bytes(48), "small": Bytes(32)},
    "queries and keys": lambda: {"encoder_q": Classifier(), "encoder_k": frozen(Classifier())},
    "an ensemble": lambda: {"a": Classifier(), "b": Classifier(), "c": Classifier()},
}


HOLDERS: dict[str, Callable[..., nn.Module]] = {
    "attributes": Held,
    "a dictionary": lambda **held: nn.ModuleDict(held),
    "a dictionary inside": lambda **held: Held(models=nn.ModuleDict(held)),
    "a list": lambda **held: Held(models=nn.ModuleList(held.values())),
    "a module inside": lambda **held: Held(model=Held(**held)),
    "compiled": lambda **held: Held(**{name: torch.compile(one) for name, one in held.items()}),
}


def heads(model: nn.Module) -> set[int]:
    frozen_too = [p for p in model.parameters() if not p.requires_grad]
    for p in frozen_too:
        p.requires_grad_(True)
    found = {id(p) for _, p in partition(model).heads}
    for p in frozen_too:
        p.requires_grad_(False)
    return found


@pytest.mark.parametrize("models", MODELS)
@each("holder", HOLDERS)
def test_each_model_keeps_its_own_head(models: str, holder: str) -> None:
    held = MODELS[models]()
    if holder == "a list" and models in ("online and target, square", "actor and twin critics", "networks of a GAN",
                                         "networks of a GAN, in short"):  # fmt: skip
        return  # there, only their names tell them from layers that follow each other
    wanted = set().union(*map(heads, held.values()))
    assert wanted
    assert heads(HOLDERS[holder](**held)) == wanted


class Distilled(Bytes):
    """A language model that holds others."""

    def __init__(self, **inside: nn.Module) -> None:
        super().__init__()
        for name, one in inside.items():
            self.add_module(name, one)


def conditioned() -> nn.Module:
    return Held(conv=nn.Conv2d(8, 8, 3), fc=nn.Linear(4, 16), mix=nn.Conv2d(8, 8, 3))


def late() -> nn.Module:
    """A block that a condition enters after its first layer."""
    return Held(conv=nn.Conv2d(6, 6, 3), condition=nn.Linear(16, 6))


def in_list(*held: nn.Module) -> nn.Module:
    return nn.ModuleList(held)


# Parts that follow each other or feed the same part, none of which is called an output, and what is one beside them.
PARTS: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "a head of the whole, and models inside": (
        lambda: Distilled(teacher=Bytes(32), ema=Classifier()),
        {"lm_head.weight", "teacher.lm_head.weight", "ema.head.weight"},
    ),
    "autoencoder": (lambda: Held(encoder=mlp(20, 12, 4), decoder=mlp(4, 12, 20)), set()),
    "stages": (lambda: Held(down=in_list(mlp(20, 16, 12), mlp(12, 10, 4)), up=in_list(mlp(4, 10, 20))), set()),
    "projector": (lambda: Held(tower=Holder(), projector=mlp(6, 16, 16), model=Bytes()), {"model.lm_head.weight"}),
    "fusion": (lambda: Held(a=mlp(9, 8, 4), b=mlp(7, 8, 4), fusion=mlp(8, 6, 3)), set()),
    "time and place": (lambda: Held(time=mlp(1, 8, 16), place=mlp(4, 8, 16), body=in_list(mlp(16, 32, 16))), set()),
    "blocks": (lambda: in_list(mlp(8, 32, 8), mlp(8, 32, 8)), set()),
    "conditioned blocks": (lambda: Held(blocks=in_list(conditioned(), conditioned())), set()),
    "conditions": (
        lambda: Held(time=mlp(4, 8, 16), label=mlp(10, 8, 16), stem=nn.Conv2d(3, 6, 3), body=in_list(late(), late())),
        set(),
    ),
    "actor and critic on a body": (
        lambda: Held(body=mlp(8, 16, 16), actor=nn.Linear(16, 4), critic=nn.Linear(16, 3)),
        {"actor.weight", "critic.weight"},
    ),
    "policy and value on a body": (
        lambda: Held(body=mlp(8, 16, 16), policy=mlp(16, 12, 4), value=nn.Linear(16, 1)),
        {"policy.2.weight"},
    ),
    "attention": (lambda: Held(q=nn.Linear(8, 8), k=nn.Linear(8, 4), v=nn.Linear(8, 4), o=nn.Linear(4, 8)), set()),
    "couplings": (lambda: in_list(*(Held(scale=mlp(4, 8, 4), shift=mlp(4, 8, 4)) for _ in range(2))), set()),
}


@each("parts", PARTS)
def test_parts_that_follow_each_other_are_hidden(parts: str) -> None:
    make, wanted = PARTS[parts]
    assert names(partition(make()).heads) == wanted
