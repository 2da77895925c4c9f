"""A programme of about forty minutes on one GPU: what the warm-up is worth at 124 million parameters.

    python benchmarks/gpu_programme.py --prepare    # on any machine: tokenises the corpus, 60 MiB of text at most
    make gpu PROGRAMME=1                            # up to nine minutes; again and again, until it says it is done
    make gpu PROGRAMME=1 DRY=1                      # without a GPU: tiny shapes, rows in a folder of their own

LLaMA-124M in bfloat16, 512 tokens, batch 32, weight decay 0.1, gradients clipped at 1, rates of `gpu_parts.RUNS`, on
the source code of installed packages. A process compiles the network once; each run sets its weights back in place. All
runs of a seed share initial weights and batches. 1,000 updates read the corpus once. The blocks, in their order:

- G: whether the geometry decides: the first 16,000 of 64,000 planned updates, Lion at 1e-3 as the paper's authors, then
  Muon: the default, Algorithm 1, 10 % and 19 %. A run goes on from a checkpoint in the next call.
- A: AdamW: the default, none, 2 % and 10 %, on three seeds.      - B: Muon: the default, none and 10 %, on four.
- D: AdamW at ten times the rate: 10 %, 10 % beside `SpikeGuard`, and the default with `recover=True`.
- E: AdamW, the default, with and without `recover=True`: in the middle, one batch's tokens are shuffled and its loss is
  multiplied by 100.      - C: 3,000 updates: the default and 10 % under AdamW, then under Muon.

Each row is stored as its run finishes. Judged by a rule written before the first run: to delete the warm-up costs
nothing if the default's mean validation loss over a block's seeds is at most 0.02 nats above that of the block's best
warm-up under AdamW (A), and at most 0.01 nats under Muon (B). The other blocks, of one seed, decide nothing.
"""

import argparse
import json
import math
import statistics
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gpu_parts import RUNS
from torch import Tensor, nn

from autowarm import AdaptiveWarmup, SpikeGuard
from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.config import LLAMA_124M, DataConfig, ModelConfig, OptimizerConfig, ScheduleConfig
from autowarm.lab.data import Corpus, prepare, training_batches, validation_batches
from autowarm.lab.data.shards import read_shards, write_shard
from autowarm.lab.files import write_atomically
from autowarm.lab.tasks.models import llama, token_loss
from autowarm.lab.training.metrics import finite
from autowarm.lab.training.optimizers import make_optimizer
from autowarm.lab.training.schedules import make_scheduler

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "runs" / "gpu-programme"
ROWS = ROOT / "docs" / "data" / "studies" / "gpu-programme.jsonl"
TABLE = ROOT / "docs" / "data" / "tables" / "gpu-programme.csv"
# By block, the nats that the default may be above the best warm-up for the warm-up to be deleted at no cost.
LIMIT = {"A": 0.02, "B": 0.01}
_BYTES, _BATCH, _EVALUATED = 60 * 2**20, 32, 64
_SHARES = {"none": 0.0, "2%": 0.02, "10%": 0.1, "19%": 0.19}
_TARGET = 1.0  # f* for Algorithm 1: about the loss at the end of a long run on this corpus, which is source code


class Run(NamedTuple):
    """One run; without `kept`, what identifies it in the rows."""

    block: str
    optimizer: str
    warmup: str = "default"
    seed: int = 0
    steps: int = 1_000
    planned: int | None = None  # T, if the run stops before
    factor: float = 1.0
    bad_batch: bool = False
    recovers: bool = False


def plan() -> list[Run]:
    """All runs, block by block, and seed by seed within a block."""
    hot = Run("D", "adamw", factor=10.0)
    rates = {"lion": 1e-3 / RUNS["lion"]["lr"], "muon": 1.0}
    return [
        *(Run("G", optimizer, warmup, steps=16_000, planned=64_000, factor=factor)
          for optimizer, factor in rates.items() for warmup in ("default", "paper", "10%", "19%")),
        *(Run("A", "adamw", warmup, seed) for seed in range(3) for warmup in ("default", "none", "2%", "10%")),
        *(Run("B", "muon", warmup, seed) for seed in range(4) for warmup in ("default", "none", "10%")),
        *(hot._replace(warmup="10%", recovers=recovers) for recovers in (False, True)),
        hot._replace(recovers=True),
        *(Run("E", "adamw", bad_batch=True, recovers=recovers) for recovers in (False, True)),
        *(Run("C", optimizer, warmup, steps=3_000) for optimizer in ("adamw", "muon") for warmup in ("default", "10%")),
    ]  # fmt: skip


class Bench:
    """The corpus, and a network that is compiled once: `made` makes one run after another with it."""

    def __init__(self, dry: bool, corpus: Path) -> None:
        self.dry, self.device = dry, torch.device("cpu" if dry else "cuda")
        self.shape = ModelConfig(layers=1, width=32, heads=2, ff=64, vocab_size=300, seq_len=32) if dry else LLAMA_124M
        self.corpus = prepare(DataConfig(max_bytes=200_000), 300) if dry else tokens(corpus)
        self.model: nn.Module = llama(self.shape, 0).to(self.device)
        if not dry:
            self.model.compile(dynamic=False)
        self.batch, self.folder = 2 if dry else _BATCH, corpus.parent

    def made(self, run: Run, left: Callable[[], float] = lambda: math.inf) -> dict[str, Any] | None:
        """Make a run; return its row. With no time left, save a checkpoint, which the next call goes on from."""
        began = time.perf_counter()
        steps, planned = (n // 200 if self.dry else n for n in (run.steps, run.planned or run.steps))
        self.model.load_state_dict(llama(self.shape, run.seed).state_dict())  # copied into the same memory
        self.model.zero_grad()
        lr, options = run.factor * RUNS[run.optimizer]["lr"], dict(RUNS[run.optimizer]["options"])
        optimizer = make_optimizer(self.model, OptimizerConfig(run.optimizer, lr, 0.1, options))
        schedule, guard = self._schedules(run, optimizer, planned)
        parts, losses = {"model": self.model, "optimizer": optimizer, "schedule": schedule}, list[Tensor]()
        checkpoint = self.folder / f"{run.block}-{run.optimizer}-{run.warmup}.pt"
        if run.planned and checkpoint.exists():
            stored = torch.load(checkpoint, self.device, weights_only=True)
            losses = [*stored["losses"]]
            for name, part in parts.items():
                part.load_state_dict(stored[name])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for batch, scale in self._batches(run, len(losses), steps):
                if run.planned and len(losses) % 100 == 0 and left() < 20:
                    content = {name: part.state_dict() for name, part in parts.items()}
                    torch.save(content | {"losses": torch.stack(losses)}, checkpoint)
                    return None
                with torch.autocast(self.device.type, torch.bfloat16, enabled=not self.dry):
                    loss = scale * token_loss(self.model, batch)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                optimizer.step()
                losses.append(loss.detach())
                schedule.step(*losses[-1:] * isinstance(schedule, AdaptiveWarmup))
                if guard is not None:
                    guard.step(losses[-1])
                optimizer.zero_grad()
        last, curve = self._evaluated(), torch.stack(losses).tolist()
        watch = guard or schedule
        by_hand = round(_SHARES.get(run.warmup, 0.0) * planned)
        checkpoint.unlink(missing_ok=True)
        return {
            **run._asdict(), "warmup_steps": getattr(schedule, "warmup_steps", by_hand),
            "ended_by": getattr(schedule, "ended_by", None), "first_loss": curve[0], "val_loss": finite(last),
            "train_loss": finite(statistics.fmean(curve[-max(1, steps // 20) :])),
            "recoveries": [list(one) for one in getattr(watch, "recoveries", ())],
            "seconds": round(time.perf_counter() - began, 1), "corpus": self.corpus.sha256[:16],
            "device": "none: a dry run" if self.dry else torch.cuda.get_device_name(), "torch": torch.__version__,
        }  # fmt: skip

    def _schedules(self, run: Run, optimizer: torch.optim.Optimizer, steps: int) -> tuple[Any, SpikeGuard | None]:
        if run.warmup == "paper":
            return AdaptiveWarmup.paper(optimizer, steps, target_loss=_TARGET, max_nonfinite=steps), None
        if run.warmup == "default":  # a run that diverges is to show it, not to stop
            recover = self.model if run.recovers else False
            return AdaptiveWarmup(optimizer, steps, recover=recover, max_nonfinite=steps, trained=False), None
        hand_set = ScheduleConfig("linear", round(_SHARES[run.warmup] * steps))
        guard = SpikeGuard(optimizer, steps, recover=self.model) if run.recovers else None
        return make_scheduler(optimizer, hand_set, steps), guard

    def _batches(self, run: Run, first: int, steps: int) -> Iterator[tuple[Tensor, float]]:
        """Each batch from an update on, on the device, and what its loss is multiplied by."""
        sizes, train = (self.batch, self.shape.seq_len), self.corpus.train
        batches = training_batches(train, run.seed, first, steps, *sizes, sampling="epochs")
        for step, batch in enumerate(batches, first):
            bad = run.bad_batch and step == steps // 2
            if bad:
                order = torch.randperm(batch.numel(), generator=torch.Generator().manual_seed(run.seed))
                batch = batch.flatten()[order].view_as(batch)
            yield batch.to(self.device, non_blocking=True), 100.0 if bad else 1.0

    @torch.no_grad()
    def _evaluated(self) -> float:
        losses = []
        for batch in validation_batches(self.corpus.val, 2 if self.dry else _EVALUATED, self.batch, self.shape.seq_len):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=not self.dry):
                losses.append(token_loss(self.model, torch.from_numpy(batch).to(self.device)))
        return statistics.fmean(torch.stack(losses).tolist())


def tokens(folder: Path) -> Corpus:
    """The corpus in a folder of token shards, made if it is not there; it may be carried to another machine."""
    if not (folder / "train_000000.bin").exists():
        corpus = prepare(DataConfig(corpus=sysconfig.get_path("purelib"), max_bytes=_BYTES), LLAMA_124M.vocab_size)
        for part, of in (("val", corpus.val), ("train", corpus.train)):
            write_shard(folder / f"{part}_000000.bin", np.asarray(of).astype(np.uint16))
    return read_shards(folder, LLAMA_124M.vocab_size)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of finished runs; a line that was cut short does not count."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def of(row: Mapping[str, Any]) -> Run:
    """The run of a row."""
    return Run(*(row[name] for name in Run._fields))


def go_on(rows: Path, make: Callable[..., dict[str, Any] | None], left: Callable[[], float]) -> list[Run]:
    """Make missing runs in their order, while the seconds left are enough for one more; return what is missing then."""
    finished, pace = {of(row) for row in read(rows)}, 0.0
    missing = [run for run in plan() if run not in finished]
    while missing and left() > (60 if missing[0].planned else 1.1 * pace * missing[0].steps):
        run, began = missing[0], left()
        if (row := make(run, left)) is None:
            break
        pace = (began - left()) / run.steps
        whole = rows.read_bytes() if rows.exists() else b""
        write_atomically(rows, whole[: whole.rfind(b"\n") + 1] + json.dumps(row).encode() + b"\n")
        print(f"{run.block} {run.optimizer} {run.warmup} seed {run.seed}: {row['val_loss']}", flush=True)
        missing.pop(0)
    return missing


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV: a row for each kind of run, the mean over its seeds, and the verdict on the default in blocks A and B."""
    row_of, groups = {of(row): row for row in rows}, dict[Run, list[Mapping[str, Any]]]()
    for run in filter(row_of.__contains__, plan()):
        groups.setdefault(run._replace(seed=0), []).append(row_of[run])
    losses = {run: [math.inf if row["val_loss"] is None else row["val_loss"] for row in some]
              for run, some in groups.items()}  # fmt: skip
    means = {run: statistics.fmean(some) for run, some in losses.items()}
    lines = []
    for run, some in groups.items():
        best = min(mean for other, mean in means.items() if other[:2] == run[:2])
        behind, verdict = means[run] - best, ""
        if run.block in LIMIT and run.warmup == "default":
            whole = all(one in row_of for one in plan() if one.block == run.block)
            verdict = ("costs nothing" if behind <= LIMIT[run.block] else "costs something") if whole else "open"
        lines.append([
            run.block, run.optimizer + (f", rate × {run.factor:.3g}" if run.factor > 1 else ""),
            run.warmup + ", bad batch" * run.bad_batch + ", recovers" * run.recovers, f"{run.steps:,}",
            f"{len(some)} of {sum(one._replace(seed=0) == run for one in plan())}",
            f"{means[run]:.4f}" if math.isfinite(means[run]) else "diverged",
            f"{behind:.4f}" if math.isfinite(behind) else "–",
            f"{statistics.fmean(row['warmup_steps'] for row in some):.0f}",
            sum(len(row["recoveries"]) for row in some), verdict,
        ])  # fmt: skip
    headings = ["block", "optimizer", "warm-up", "updates", "seeds", "validation loss", "above the best, nats",
                "its updates", "recoveries", "deleting it"]  # fmt: skip
    return comma_separated(headings, lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Make runs for a while, or prepare the corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="stop after so many (default 9)")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the processor")
    parser.add_argument("--prepare", action="store_true", help="only tokenise the corpus")
    parser.add_argument("--rows", type=Path, help="finished runs (of a dry run, a new file)")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="folder of token shards, made if it is not there")
    given = parser.parse_args(argv)
    began, dry = time.monotonic(), given.dry_run
    rows = given.rows or (Path(tempfile.mkdtemp(prefix="gpu-dry-run-")) / ROWS.name if dry else ROWS)
    if given.prepare:
        print(f"{tokens(given.corpus).tokens:,} tokens in {given.corpus}")
        return
    if not dry and not torch.cuda.is_available():
        sys.exit("no GPU is at hand; `make gpu PROGRAMME=1 DRY=1` tries everything without one")
    bench = Bench(dry, given.corpus)
    missing = go_on(rows, bench.made, lambda: 60 * given.minutes - (time.monotonic() - began))
    print(f"{rows}: " + (f"{len(missing)} of {len(plan())} runs are missing; call again" if missing else "done"))
    text = table(read(rows))
    if rows == ROWS:
        TABLE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
