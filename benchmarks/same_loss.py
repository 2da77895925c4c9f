"""Do the ways of finding Muon's direction train alike? A small language model on Python's own source, some seeds each.

python benchmarks/same_loss.py --steps 300 --seeds 3
"""

import argparse
import statistics
from pathlib import Path

import torch
from torch import Tensor, nn

from autowarm import Muon

WAYS = {
    "svd": {"method": "svd"},
    "newton-schulz": {"method": "newton-schulz"},
    "polar-express": {"method": "polar-express"},
    "polar-express, float32": {"method": "polar-express", "dtype": torch.float32},
}


class Model(nn.Module):
    """Bytes in, bytes out; two layers of causal attention."""

    def __init__(self, width: int = 64, context: int = 64) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(256, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, 4, 3 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.embed(x) + self.position(torch.arange(x.shape[1]))
        return self.head(self.norm(self.layers(h, mask=mask, is_causal=True)))


def train(data: Tensor, seed: int, steps: int, options: dict) -> float:
    """The mean loss over the last tenth of a run."""
    torch.manual_seed(seed)
    model = Model()
    optimizer = Muon.from_model(model, lr=4e-3, **options)
    losses = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 4e-3 * min(1.0, (step + 1) / 30) * (1 - step / steps)
        starts = torch.randint(len(data) - 65, (16,))
        batch = torch.stack([data[start : start + 65] for start in starts.tolist()]).long()
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return statistics.fmean(losses[-steps // 10 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    folder = Path(statistics.__file__).parent
    source = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    data = torch.frombuffer(bytearray(source), dtype=torch.uint8)
    for name, way in WAYS.items():
        losses = [train(data, seed, options.steps, way) for seed in range(options.seeds)]
        spread = statistics.stdev(losses) if len(losses) > 1 else float("nan")
        print(f"{name:24} {statistics.fmean(losses):.4f} ± {spread:.4f} over seeds", flush=True)


if __name__ == "__main__":
    main()
