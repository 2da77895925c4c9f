"""What a probed step costs, as a multiple of a plain one.

Plain and probed steps of one run alternate in short turns, so that a busy machine slows both alike; the ratio is of the
medians. Run it as ``OMP_NUM_THREADS=1 python benchmarks/smoothness.py [--width 256 --layers 4 --device cuda]``.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from autowarm import Lion, Muon, NormSGD
from autowarm.lab.config import ModelConfig
from autowarm.lab.tasks.models import llama, token_loss
from autowarm.smoothness import Probe

OPTIMIZERS = {"lion": (Lion, 1e-3), "muon": (Muon, 3e-3), "normsgd": (NormSGD, 3e-2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    config = ModelConfig(
        layers=given.layers, width=given.width, heads=given.width // 16, ff=11 * given.width // 4,
        vocab_size=given.vocab, seq_len=given.seq_len,
    )  # fmt: skip
    tokens = torch.randint(given.vocab, (given.batch_size, given.seq_len + 1)).to(given.device)
    size = f"{given.layers} layers, width {given.width}, {given.batch_size} × {given.seq_len} tokens, {given.device}"
    print(f"{size}\n{'optimizer':<10}{'plain ms':>10}{'probed ms':>11}{'ratio':>7}")
    for name, (cls, lr) in OPTIMIZERS.items():
        model = llama(config, seed=0).to(given.device)
        optimizer = cls.from_model(model, lr=lr)
        probe = Probe(model, optimizer)

        def closure(model: torch.nn.Module = model) -> torch.Tensor:
            loss = token_loss(model, tokens)
            loss.backward()
            return loss

        def plain(optimizer: torch.optim.Optimizer = optimizer, closure: Callable = closure) -> None:
            closure()
            optimizer.step()
            optimizer.zero_grad()

        def probed(
            optimizer: torch.optim.Optimizer = optimizer, probe: Probe = probe, closure: Callable = closure
        ) -> None:
            with probe(closure):
                optimizer.step()
            optimizer.zero_grad()

        times: dict[Callable, list[float]] = {plain: [], probed: []}
        for turn in range(given.turns + 2):
            for step, taken in times.items():
                if given.device != "cpu":
                    torch.cuda.synchronize()
                start = time.perf_counter()
                step()
                if given.device != "cpu":
                    torch.cuda.synchronize()
                if turn >= 2:  # the first turns warm caches
                    taken.append(time.perf_counter() - start)
        a, b = (statistics.median(times[step]) * 1e3 for step in (plain, probed))
        print(f"{name:<10}{a:>10.1f}{b:>11.1f}{b / a:>7.2f}")


if __name__ == "__main__":
    main()
