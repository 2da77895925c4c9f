"""Speed and memory of the training loop.

`python benchmarks/training.py` trains the same LLaMA in turns by the lab's loop and by a plain eager float32 loop, and
prints the medians of the ratios of neighbouring turns: the machine may be busy, and what slows one turn slows its
neighbours.

`python benchmarks/training.py memory` takes a few steps of the 124M model, or of another (`--model`), on shards in
FineWeb's format, and holds its peak memory against the sum of weights, gradients, optimizer state and activations.
"""

import argparse
import dataclasses
import itertools
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from autowarm.lab.config import ModelConfig, OptimizerConfig, RunConfig, ScheduleConfig
from autowarm.lab.config.build import build, read_yaml
from autowarm.lab.data import batch, prepare
from autowarm.lab.paper.costs import memory as by_arithmetic
from autowarm.lab.tasks.models import llama, token_loss
from autowarm.lab.training.loop import train
from autowarm.lab.training.optimizers import make_optimizer
from autowarm.lab.training.schedules import make_scheduler

VOCABULARY = 1024
MODELS = {"124M": "llama-124m", "210M": "llama-210m"}  # presets


def config_of(width: int, steps: int, seq_len: int, batch_size: int) -> RunConfig:
    model = ModelConfig(layers=4, width=width, heads=max(2, width // 64), ff=round(width * 8 / 3 / 16) * 16,
                        vocab_size=VOCABULARY, seq_len=seq_len)  # fmt: skip
    return RunConfig(
        model=model, optimizer=OptimizerConfig(name="normsgd", lr=0.01),
        schedule=ScheduleConfig(kind="linear", warmup_steps=2), steps=steps, batch_size=batch_size, eval_batches=1,
        checkpoint_every=10**6,
    )  # fmt: skip


def ours(config: RunConfig, compiled: bool = False) -> float:
    """Seconds a step, without the first two."""
    config = dataclasses.replace(config, engine=dataclasses.replace(config.engine, compile=compiled))
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder), lambda _: times.append(time.perf_counter()))
    return statistics.median(b - a for a, b in itertools.pairwise(times[1:]))


def plain(config: RunConfig) -> float:
    """Seconds a step of the loop everybody writes first: eager, float32."""
    model = llama(config.model, 0)
    corpus = prepare(config.data, VOCABULARY)
    optimizer = make_optimizer(model, config.optimizer)
    scheduler = make_scheduler(optimizer, config.schedule, config.steps)
    times = []
    for step in range(config.steps):
        tokens = torch.from_numpy(batch(corpus.train, 0, step, config.batch_size, config.model.seq_len))
        token_loss(model, tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        times.append(time.perf_counter())
    return statistics.median(b - a for a, b in itertools.pairwise(times[1:]))


def speed(args: argparse.Namespace) -> None:
    print("width  precision  tokens/s  over plain float32  the same, compiled")
    for width in args.widths:
        config = config_of(width, args.steps, args.seq_len, args.batch_size)
        gains, compiled, rates = [], [], []
        for _ in range(args.turns):
            base = plain(config)
            mine = ours(config)
            compiled.append(base / ours(config, compiled=True))
            gains.append(base / mine)
            rates.append(config.batch_size * config.model.seq_len / mine)
        print(f"{width:5}  {'bfloat16' if width >= 256 else 'float32':9}  {statistics.median(rates):8,.0f}  "
              f"{spread_of(gains)}  {spread_of(compiled)}", flush=True)  # fmt: skip


def spread_of(ratios: list[float]) -> str:
    """Median, least and largest."""
    return f"{statistics.median(ratios):5.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def memory(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if not args.shards:
            import numpy as np

            from autowarm.lab.data.shards import write_shard

            args.shards = f"{folder}/shards"
            draw = np.random.default_rng(0)
            for part in ("train", "val"):
                write_shard(
                    Path(args.shards) / f"fineweb_{part}_000000.bin",
                    draw.zipf(1.2, 10**6).clip(0, 50256).astype(np.uint16),
                )
        preset = build(RunConfig, read_yaml(MODELS[args.model])[0], args.model)
        config = RunConfig(model=preset.model, steps=3, batch_size=8, eval_batches=1)
        config = dataclasses.replace(
            config,
            data=dataclasses.replace(config.data, corpus=args.shards),
            engine=dataclasses.replace(config.engine, precision="bfloat16", accumulate=4),
        )
        from transformers import LlamaForCausalLM  # noqa: F401  the libraries' own memory is not the run's

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        losses: list[float] = []
        train(config, Path(folder) / "run", lambda progress: losses.append(progress.loss))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    parts = by_arithmetic(config)
    total = sum(parts.values())
    print(json.dumps({name: f"{size / 2**30:.2f} GiB" for name, size in parts.items()}, indent=1))
    print(f"by arithmetic {total / 2**30:.2f} GiB, measured {peak / 2**30:.2f} GiB above the libraries' "
          f"{before / 2**30:.2f} GiB: ratio {peak / total:.2f}; losses {losses}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="?", default="speed", choices=["speed", "memory"])
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128, 256, 384, 512])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seq_len", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--model", choices=MODELS, default="124M", help="for memory")
    parser.add_argument("--shards", help="a folder of token shards for memory; by default one is drawn at random")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    {"speed": speed, "memory": memory}[args.what](args)


if __name__ == "__main__":
    main()
