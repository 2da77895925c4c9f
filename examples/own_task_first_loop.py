"""README's first loop as a task: how long a warm-up does it need, under two optimizers?

`make demo` runs the second of these:

    python examples/own_task_first_loop.py        # or with a number of updates
    autowarm compare --task examples/own_task_first_loop.py:FirstLoop
"""

import sys

import torch
from torch import nn


class FirstLoop:
    defaults = {
        "rates": {"adamw": [3e-3], "muon": [2e-2]},  # README's, and a usual one
        "run.steps": 1000,
        "warmups": [0, 0.1, 0.4, 0.8],  # of the run
        "seeds": [0, 1, 2, 3],
    }

    def __init__(self):
        generator = torch.Generator().manual_seed(0)  # one teacher for all seeds
        self.layers = [torch.randn(*shape, generator=generator) / shape[0] ** 0.5 for shape in ((32, 64), (64, 10))]

    def model(self):
        hidden = [layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.ReLU())]
        return nn.Sequential(nn.Linear(32, 128), nn.ReLU(), *hidden, nn.Linear(128, 10))

    def batch(self, size):
        x = torch.randn(size, 32)
        return x, (torch.tanh(x @ self.layers[0]) @ self.layers[1]).argmax(1)

    def batches(self, seed):
        while True:
            yield self.batch(128)

    def loss(self, model, batch):
        x, y = batch
        return nn.functional.cross_entropy(model(x), y)

    def validation(self):
        return [self.batch(4096)]


if __name__ == "__main__":
    from autowarm.lab import compare

    steps = int(sys.argv[1]) if sys.argv[1:] else FirstLoop.defaults["run.steps"]
    print(compare(FirstLoop(), steps=steps, out="runs/first-loop"))
