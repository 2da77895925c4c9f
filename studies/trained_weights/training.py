"""Small models that are trained here from new weights, by each optimizer."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from autowarm import Lion, Muon, NormSGD, SignSGD
from autowarm.lab.data.images import scanned_digits


class GPT(nn.Module):
    """A byte-level transformer; with ``tied``, GPT-2's manner: learned positions, biases, N(0, 0.02²), a tied head."""

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4, *, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.positions = nn.Embedding(64, width)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02 if tied else p.shape[1] ** -0.5)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        h = self.embed(x) + self.positions.weight[:length]
        return self.head(self.norm(self.blocks(h, mask, is_causal=True))).transpose(1, 2)


class ViT(nn.Module):
    """Digits as 16 patches of 2 × 2 pixels."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patch, self.positions = nn.Conv2d(1, width, 2, 2), nn.Parameter(0.02 * torch.randn(16, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 3, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x.view(-1, 1, 8, 8)).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(h)).mean(1))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def convnet() -> nn.Module:
    def block(i: int, o: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]

    body = [*block(1, 16, 1), *block(16, 32, 2), *block(32, 32, 1), *block(32, 64, 2)]
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


TASKS = {  # half, model, kind of data
    "mlp": ("choose", mlp, "digits"),
    "text": ("choose", GPT, "text"),
    "convnet": ("judge", convnet, "digits"),
    "vit": ("judge", ViT, "digits"),
    "gpt": ("judge", lambda: GPT(64, 3, tied=True), "text"),
}
RATES = {"AdamW": 2e-3, "Muon": 0.02, "Lion": 5e-4, "SGD": 0.05, "NormSGD": 0.03, "SignSGD": 3e-4}
WARMUP = 20  # updates
UPDATES = (50, 200, 1000)


def optimizer_of(name: str, model: nn.Module, scale: float = 1.0) -> torch.optim.Optimizer:
    lr, params = RATES[name] * scale, [p for p in model.parameters() if p.requires_grad]
    if name == "Muon":
        return Muon.from_model(model, lr=lr, adamw_lr=2e-3 * scale, weight_decay=0.0)
    if name == "SGD":
        return torch.optim.SGD(params, lr, momentum=0.9)
    return {"AdamW": torch.optim.AdamW, "Lion": Lion, "NormSGD": NormSGD, "SignSGD": SignSGD}[name](params, lr)


def digits() -> tuple[Tensor, Tensor]:
    x, y = scanned_digits()
    return torch.from_numpy(x).flatten(1).float() / 16, torch.from_numpy(y)


def text() -> Tensor:
    """The sources of a few of Python's modules."""
    import argparse
    import inspect
    import typing

    source = "".join(inspect.getsource(module) for module in (argparse, inspect, typing))
    return torch.frombuffer(bytearray(source.encode()), dtype=torch.uint8).long()


def train(
    model: nn.Module, data: str, optimizer: torch.optim.Optimizer, updates: int, seed: int = 0
) -> Iterator[float]:
    """One update after the other, with a short linear warm-up; yields the loss before each."""
    generator = torch.Generator().manual_seed(seed)
    x, y = digits() if data == "digits" else (text(), None)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARMUP))
    for _ in range(updates):
        if y is not None:
            at = torch.randint(len(x), (64,), generator=generator)
            inputs, targets = x[at], y[at]
        else:
            at = torch.randint(len(x) - 33, (8,), generator=generator)
            rows = torch.stack([x[i : i + 33] for i in at])
            inputs, targets = rows[:, :-1], rows[:, 1:]
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        yield loss.item()
