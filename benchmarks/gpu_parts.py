"""What `benchmarks/gpu.py` measures, part by part, most valuable first.

A part is a generator of (name, result) pairs, which leaves out what is known from an earlier call. `dry` is for a
machine without a GPU: the same code on tiny shapes, and no number of what only a GPU could show.
"""

import dataclasses
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from optimizers import LIONS, MUONS, clock, llama_shapes, measure_peak
from torch import Tensor
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile

import autowarm

ROOT = Path(__file__).parents[1]
Found = Iterator[tuple[str, Any]]
Known = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a part is run: without a GPU or with one."""

    dry: bool

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.dry else "cuda")


def tests(known: Known, setting: Setting) -> Found:
    """The suite's tests that run on a GPU: by function, how many passed, failed and were skipped."""
    words = ["-k", "one_rank and lion"] if setting.dry else ["-n", "12"] if find_spec("xdist") else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--show-capture=no", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, f"--junitxml={report}", *words, "tests/test_gpu.py"], cwd=ROOT, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        print(done.stdout[-8000:])
        if not report.exists():
            raise RuntimeError(f"pytest wrote no report: {done.stdout[-300:]}")
        counts: dict[str, dict[str, Any]] = {}
        for case in ET.parse(report).getroot().iter("testcase"):
            of = counts.setdefault(case.get("name", "").split("[")[0], {"passed": 0, "failed": 0, "skipped": 0})
            bad = next((child for child in case if child.tag in ("failure", "error")), None)
            of["failed" if bad is not None else "skipped" if case.find("skipped") is not None else "passed"] += 1
            if bad is not None:
                of.setdefault("message", f"{case.get('name')}: {bad.get('message', '')}"[:300])
    yield from counts.items()


def _captured(opt: Optimizer, setting: Setting) -> Callable[[], Any]:
    if setting.dry:
        raise RuntimeError("only a GPU captures CUDA graphs")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            opt.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        opt.step()
    return graph.replay


def _tensor_rate(params: list[Tensor], **options: Any) -> Optimizer:
    rate = torch.tensor(0.01, device=params[0].device)
    return autowarm.Muon(params, lr=rate, weight_decay=0.1, radius="original", **options)


# Label: an optimizer of tensors, and what makes a step of it where that is not its own.
_Stepper = Callable[[Optimizer, Setting], Callable[[], Any]]
_STEPS: dict[str, tuple[Callable[[list[Tensor]], Optimizer], _Stepper]] = {
    "torch.optim.Muon": (MUONS["torch.optim.Muon"], lambda opt, _: opt.step),
    "Muon": (MUONS["autowarm"], lambda opt, _: opt.step),
    "Muon, captured": (lambda params: _tensor_rate(params, capturable=True), _captured),
    "Muon, compiled": (
        _tensor_rate,
        lambda opt, setting: torch.compile(opt.step, fullgraph=True, backend="eager" if setting.dry else "inductor"),
    ),
    "dion's Muon": (MUONS["dion"], lambda opt, _: opt.step),
    "torch.optim.AdamW, fused": (lambda params: torch.optim.AdamW(params, fused=True), lambda opt, _: opt.step),
    "Lion": (LIONS["autowarm"], lambda opt, _: opt.step),
}


def steps(known: Known, setting: Setting) -> Found:
    """One optimizer step on the hidden matrices of a LLaMA: milliseconds, the host's share, launches and peak bytes."""
    sizes = {"tiny": (1, 64)} if setting.dry else {"124M": (12, 768), "1B": (20, 2048)}
    for (size, (layers, width)), (label, (make, stepper)) in itertools.product(sizes.items(), _STEPS.items()):
        if f"{size} {label}" in known:
            continue
        torch.manual_seed(0)
        shapes = llama_shapes(layers, width, split=False)
        params = [torch.nn.Parameter(torch.randn(shape, device=setting.device) * 0.02) for shape in shapes]
        for p in params:
            p.grad = torch.randn_like(p)
        try:
            result = _measured(stepper(make(params), setting), setting.device, rounds=3 if setting.dry else 30)
        except Exception as error:  # a peer that is not installed, or what does not work: said, and the rest goes on
            result = {"missing": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        if "captured" in label:
            result["peak_bytes"] = None  # a graph keeps its memory from step to step
        yield f"{size} {label}", result
        torch.compiler.reset()


def _measured(step: Callable[[], Any], device: torch.device, rounds: int) -> dict[str, Any]:
    for _ in range(3):
        step()
    now = clock("wall", device)
    whole, host = [], []
    for _ in range(rounds):
        start = now()
        step()
        host.append(time.perf_counter() - start)  # the host is done, the GPU may not be
        whole.append(now() - start)
    measured = {"ms": statistics.median(whole) * 1e3, "host_ms": None, "launches": None,
                "peak_bytes": measure_peak(step, device)}  # fmt: skip
    if device.type == "cuda":  # how often the host starts a kernel or a graph
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            step()
            torch.cuda.synchronize()
        launches = (event.count for event in profiler.key_averages() if re.match(r"cu(da)?\w*Launch", event.key))
        measured |= {"host_ms": statistics.median(host) * 1e3, "launches": sum(launches)}
    return measured


# Rates as people set them for 100M parameters, chosen before any run: AdamW's 1e-3, the same for Muon, whose steps
# `match_rms_adamw` scales to AdamW's, and 3e-4 for Lion, whose authors advise 3 to 10 times less than AdamW's.
RUNS = {
    "adamw": {"lr": 1e-3, "options": {"betas": (0.9, 0.95)}},
    "muon": {"lr": 1e-3, "options": {"momentum": 0.95, "radius": "match_rms_adamw", "adamw_betas": (0.9, 0.95)}},
    "lion": {"lr": 3e-4, "options": {"betas": (0.9, 0.99)}},
}


def _config(dry: bool, compiled: bool) -> Any:
    """The paper's 124M model and batch of 32, on the largest text that is sure to be there: transformers' source."""
    import transformers

    from autowarm.lab import config as lab

    text = lab.DataConfig(corpus=str(Path(transformers.__file__).parent), max_bytes=60_000_000)
    return lab.RunConfig(
        model=lab.ModelConfig(vocab_size=300) if dry else lab.LLAMA_124M,
        data=lab.DataConfig(max_bytes=600_000) if dry else text,
        optimizer=lab.OptimizerConfig(name="muon", **RUNS["muon"]),
        schedule=lab.ScheduleConfig(kind="linear", warmup_steps=2), steps=4 if dry else 60, batch_size=2 if dry else 32,
        eval_batches=1, checkpoint_every=10**6, engine=lab.EngineConfig(compile=compiled, keep_weights=False),
    )  # fmt: skip


def llama(known: Known, setting: Setting) -> Found:
    """Training LLaMA-124M with Muon by the lab's loop: tokens a second, and the share of the GPU's peak (MFU)."""
    from autowarm.lab.tasks.models import flops_per_token
    from autowarm.lab.training.loop import train
    from autowarm.lab.training.parallel import PEAK_FLOPS

    words = [] if setting.dry else torch.cuda.get_device_name().replace("-", " ").split()
    peak = next((rate for name, rate in PEAK_FLOPS.items() if name in words), None)
    for label in ("eager", "compiled"):
        if label in known:
            continue
        config = _config(setting.dry, label == "compiled" and not setting.dry)
        times: list[float] = []
        if not setting.dry:
            torch.cuda.reset_peak_memory_stats()
        with tempfile.TemporaryDirectory() as folder:
            train(config, Path(folder), lambda _, times=times: times.append(time.perf_counter()))
        seconds = statistics.median(b - a for a, b in itertools.pairwise(times[len(times) // 2 :]))
        rate = config.batch_size * config.model.seq_len / seconds
        yield label, {"tokens_per_second": rate, "step_ms": seconds * 1e3,
                      "mfu": peak and rate * flops_per_token(config.model) / peak,
                      "peak_bytes": None if setting.dry else torch.cuda.max_memory_allocated()}  # fmt: skip


# Name: what measures it, and the most seconds it may take.
PARTS: dict[str, tuple[Callable[[Known, Setting], Found], int]] = {
    "tests": (tests, 400),
    "steps": (steps, 330),
    "llama": (llama, 240),
}
