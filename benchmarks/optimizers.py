"""Time one optimizer step: ours and every peer that is installed, on the same tensors, interleaved, in one process.

    python benchmarks/optimizers.py                      # all workloads, on a GPU if there is one
    python benchmarks/optimizers.py d64 d128 --rounds 50
    python benchmarks/optimizers.py --threads 1 --clock cpu   # on a machine that others use too
    python benchmarks/optimizers.py --threads 2 --rounds 21 --out docs/data/optimizers.json
    python benchmarks/optimizers.py --page                    # from that, the tables of docs/optimizers.md

Peers that are missing are listed as missing; `pip install pytorch-optimizer heavyball lion-pytorch timm` gets most. The
output has the median time of a step, its ratio to the workload's base line, and the peak of memory above parameters and
state. Results go to a JSON file.
"""

import argparse
import importlib
import itertools
import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile

import autowarm
from autowarm.lab.analysis import markdown
from autowarm.orthogonalize import working_dtype

DOCS = Path(__file__).parents[1] / "docs" / "data"
_AT_LEAST = 3.0  # seconds to measure for: short steps get more rounds, up to twenty times as many
_PATIENCE = 20.0  # seconds for a first step, with whatever is compiled in it

Contenders = dict[str, Callable[[list[Tensor]], Optimizer]]


def llama_shapes(layers: int, width: int, *, split: bool) -> list[tuple[int, int]]:
    """The hidden matrices of a LLaMA: query, key and value fused or split, output, gate, up and down."""
    inner = 32 * -(-width * 8 // (3 * 32))
    attention = [(width, width)] * 3 if split else [(3 * width, width)]
    return ([*attention, (width, width), (inner, width), (inner, width), (width, inner)]) * layers


def _peer(module: str, name: str, **options: Any) -> Callable[[Any], Optimizer]:
    return lambda params: getattr(importlib.import_module(module), name)(params, **options)


def _pytorch_optimizer(**options: Any) -> Callable[[list[Tensor]], Optimizer]:
    make = _peer("pytorch_optimizer", "Muon", lr=0.01, weight_decay=0.1, **options)
    return lambda params: make([{"params": params, "use_muon": True}])


def _heavyball(params: list[Tensor]) -> Optimizer:
    heavyball = importlib.import_module("heavyball")
    # Left to itself it compiles for minutes before its first step, for each set of shapes.
    heavyball.utils.compile_mode = None
    return heavyball.Muon(params, lr=0.01)


MUONS: Contenders = {
    "torch.optim.Muon": lambda params: torch.optim.Muon(params, lr=0.01, weight_decay=0.1),
    "autowarm": lambda params: autowarm.Muon(params, lr=0.01, weight_decay=0.1, radius="original"),
    "autowarm, 5 steps": lambda params: autowarm.Muon(params, lr=0.01, weight_decay=0.1, radius="original", steps=5),
    "autowarm, newton-schulz": lambda params: autowarm.Muon(
        params, lr=0.01, weight_decay=0.1, radius="original", method="newton-schulz"
    ),
    "timm": _peer("timm.optim", "Muon", lr=0.01, weight_decay=0.1, nesterov=True),
    "pytorch-optimizer": _pytorch_optimizer(),
    "pytorch-optimizer, gram": _pytorch_optimizer(ns_method="gram_newton_schulz"),
    "heavyball, eager": _heavyball,
    "dion": _peer("dion", "Muon", lr=0.01, weight_decay=0.1, nesterov=True),
}
LIONS: Contenders = {
    "lion-pytorch, foreach": _peer("lion_pytorch.foreach", "Lion", lr=1e-4, weight_decay=0.1),
    "lion-pytorch": _peer("lion_pytorch", "Lion", lr=1e-4, weight_decay=0.1),
    "autowarm": lambda params: autowarm.Lion(params, lr=1e-4, weight_decay=0.1),
    "pytorch-optimizer": _peer("pytorch_optimizer", "Lion", lr=1e-4, weight_decay=0.1),
    "timm": _peer("timm.optim", "Lion", lr=1e-4, weight_decay=0.1),
}
SGDS: Contenders = {
    "torch.optim.SGD, foreach": lambda params: torch.optim.SGD(params, lr=1e-3, momentum=0.95, foreach=True),
    "autowarm NormSGD": lambda params: autowarm.NormSGD(params, lr=1e-3),
    "autowarm SignSGD": lambda params: autowarm.SignSGD(params, lr=1e-3),
}
# Name: (contenders, shapes); the first contender is the base line.
WORKLOADS: dict[str, tuple[Contenders, list[tuple[int, int]]]] = {}
for _layers, _width in ((4, 64), (6, 128), (6, 256), (2, 768)):
    WORKLOADS[f"d{_width}"] = (MUONS, llama_shapes(_layers, _width, split=False))
    WORKLOADS[f"d{_width}-split"] = (MUONS, llama_shapes(_layers, _width, split=True))
WORKLOADS["124m"] = (MUONS, llama_shapes(12, 768, split=False))
for _name, _contenders in (("lion", LIONS), ("sgd", SGDS)):
    WORKLOADS[f"{_name}-d64"] = (_contenders, llama_shapes(4, 64, split=False))
    WORKLOADS[f"{_name}-d768"] = (_contenders, llama_shapes(2, 768, split=False))


def measure_peak(step: Callable[[], Any], device: torch.device) -> int:
    """The most bytes that are allocated at one time during a step, above what was before."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def clock(kind: str, device: torch.device) -> Callable[[], float]:
    def now() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return now if device.type == "cuda" else time.process_time if kind == "cpu" else time.perf_counter


def run(name: str, rounds: int, kind: str, device: torch.device) -> dict[str, Any]:
    contenders, shapes = WORKLOADS[name]
    torch.manual_seed(0)
    weights = [torch.randn(shape) * 0.02 for shape in shapes]
    gradients = [torch.randn(shape).to(device) for shape in shapes]
    steps: dict[str, Callable[[], Any]] = {}
    restores: dict[str, Callable[[], None]] = {}
    result: dict[str, Any] = {"workload": name, "parameters": sum(w.numel() for w in weights), "contenders": {}}
    for label, make in contenders.items():
        params = [torch.nn.Parameter(w.to(device).clone()) for w in weights]

        def restore(params: list[Tensor] = params) -> None:
            """Put the gradients back that an optimizer dropped or changed."""
            for p, g in zip(params, gradients, strict=True):
                p.grad = g.clone()

        restore()
        try:
            optimizer = make(params)
            for _ in range(3):
                start = clock(kind, device)()
                optimizer.step()
                took = clock(kind, device)() - start
                restore()
                if took > _PATIENCE:
                    raise TimeoutError(f"a step takes {took:.0f} s, too long to wait for")
        except Exception as error:
            result["contenders"][label] = {"missing": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
            continue
        steps[label], restores[label] = optimizer.step, restore
        result["contenders"][label] = {"peak_bytes": measure_peak(optimizer.step, device)}
        restore()

    now, order = clock(kind, device), random.Random(0)
    times: dict[str, list[float]] = {label: [] for label in steps}
    began = time.perf_counter()
    for turn in itertools.count():
        if turn >= rounds and (turn >= 20 * rounds or time.perf_counter() - began > _AT_LEAST):
            break
        # After two rounds, contenders that take five times the base line's time have shown what they take.
        limit = 5 * statistics.median(times[next(iter(steps))]) if turn >= 2 else float("inf")
        labels = [label for label in steps if turn < 2 or statistics.median(times[label]) < limit]
        # At small widths a step takes a fifth longer after another's than after its like, so nobody has a fixed place.
        for label in order.sample(labels, len(labels)):
            start = now()
            steps[label]()
            times[label].append(now() - start)
            restores.get(label, lambda: None)()
    medians = {label: statistics.median(ts) * 1e3 for label, ts in times.items()}
    base = medians[next(label for label in contenders if label in medians)]
    for label, median in medians.items():
        result["contenders"][label] |= {"ms": median, "times_faster": base / median}
    largest = max(shapes.count((m, n)) * m * n for m, n in set(shapes))  # the matrices of a shape are a stack
    result["largest_stack_bytes"] = largest * torch.finfo(working_dtype(device)).bits // 8
    return result


def table(result: dict[str, Any]) -> str:
    stack = result["largest_stack_bytes"]
    lines = [
        f"{result['workload']} ({result['parameters']:,} parameters; largest stack {stack / 2**20:.2f} MiB)",
        f"{'':26}{'ms':>9}{'× faster':>10}{'peak/stack':>12}",
    ]
    for label, of in result["contenders"].items():
        if "missing" in of:
            lines.append(f"{label:26}  missing: {of['missing']}")
        else:
            lines.append(f"{label:26}{of['ms']:9.2f}{of['times_faster']:10.2f}{of['peak_bytes'] / stack:12.2f}")
    return "\n".join(lines)


def tables(results: list[dict[str, Any]]) -> dict[str, str]:
    """The tables of docs/optimizers.md as CSV by name: Muon's time, and the elementwise optimizers'."""
    contenders = {result["workload"]: result["contenders"] for result in results}
    stacks = {result["workload"]: result["largest_stack_bytes"] for result in results}
    layers = {"d64": 4, "d128": 6, "d256": 6, "d768": 2}

    def ms(contender: dict[str, Any]) -> str:
        return f"{contender['ms']:.3g} ms" if "ms" in contender else "–"

    times, elementwise = [], []
    for name, count in layers.items():
        for split in ("", "-split"):
            of = contenders[name + split]
            ours = of["autowarm"]
            times.append([
                f"{count} layers, d = {name[1:]}{', split' if split else ''}", ms(of["torch.optim.Muon"]), ms(ours),
                f"**{ours['times_faster']:.2f}**", f"{of['autowarm, 5 steps']['times_faster']:.2f}",
                f"{ours['peak_bytes'] / stacks[name + split]:.1f}",
                *(ms(of[peer]) for peer in ("timm", "pytorch-optimizer", "heavyball, eager")),
            ])  # fmt: skip
    for kind, words, ours in (("lion", "Lion", "autowarm"), ("sgd", "NormSGD", "autowarm NormSGD")):
        for size in ("d64", "d768"):
            of = contenders[f"{kind}-{size}"]
            base = next(iter(of))
            row = [f"`{words}`, {layers[size]} layers d = {size[1:]}", base, ms(of[base])]
            elementwise.append([*row, f"{of[ours]['times_faster']:.2f}"])
    peers = ["timm", "pytorch-optimizer", "HeavyBall"]
    headings = ["shapes", "torch.optim.Muon", "ours", "× faster", "with `steps=5`", "peak / largest stack", *peers]
    others = ["elementwise", "base line", "", "ours is faster by"]
    return {
        "optimizers-times": markdown.comma_separated(headings, times),
        "optimizers-elementwise": markdown.comma_separated(others, elementwise),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("workloads", nargs="*", help=f"some of {', '.join(WORKLOADS)}; default: all but 124m on a CPU")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: only with --threads 1")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--page", action="store_true", help="measure nothing: write the tables of docs/optimizers.md")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/optimizers.json"))
    options = parser.parse_args()
    if options.page:
        results = json.loads((DOCS / "optimizers.json").read_text(encoding="utf-8"))["results"]
        for name, text in tables(results).items():
            (DOCS / "tables" / f"{name}.csv").write_text(text, encoding="utf-8")
        return
    if unknown := [name for name in options.workloads if name not in WORKLOADS]:
        parser.error(f"unknown workload {unknown[0]!r}: use some of {', '.join(WORKLOADS)}")
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.clock == "cpu" and torch.get_num_threads() != 1:
        parser.error("--clock cpu counts the time of waiting threads too: use it with --threads 1")
    device = torch.device(options.device)
    names = options.workloads or [name for name in WORKLOADS if name != "124m" or device.type == "cuda"]
    processor = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    environment = {
        "torch": torch.__version__, "autowarm": autowarm.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor,
        "threads": torch.get_num_threads(), "working_dtype": str(working_dtype(device)), "clock": options.clock,
        "rounds": options.rounds,
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = {}
    if options.out.exists() and (stored := json.loads(options.out.read_text()))["environment"] == environment:
        results = {result["workload"]: result for result in stored["results"]}  # until they are measured again
    for name in names:
        results[name] = run(name, options.rounds, options.clock, device)
        print(table(results[name]), end="\n\n", flush=True)
        ordered = [results[name] for name in WORKLOADS if name in results]
        options.out.write_text(json.dumps({"environment": environment, "results": ordered}, indent=1) + "\n")


if __name__ == "__main__":
    main()
