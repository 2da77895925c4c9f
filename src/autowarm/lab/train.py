"""The one training loop.

A run is a folder::

    config.yaml        the resolved config
    metrics.jsonl      one line a step: loss before the update, the update's rate, seconds so far
    events.out.*       the same for TensorBoard
    checkpoint-STEP-DIGEST.pt   the newest two; the digest is of the file's content
    model.safetensors  the final weights, with the config.json that transformers loads them by
    result.json        at the end

Called again on such a folder, `train` goes on from the newest whole checkpoint and ends with the same bits as a run
that was never interrupted.
"""

import dataclasses
import io
import json
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
import yaml
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

import autowarm

from .config import LabError, OptimizerConfig, RunConfig, ScheduleConfig, differences, identity, run_id
from .data import Corpus, batch, prepare, validation_batches
from .files import locked, sha256, write_atomically, write_json
from .models import llama, save_weights, token_loss

logger = logging.getLogger(__name__)

# What surrounds an update: it is given the forward and backward pass, runs it, and hands over the loss.
Watch: TypeAlias = Callable[[Callable[[], Tensor]], AbstractContextManager[Tensor]]

_CLASSES = {"muon": "Muon", "lion": "Lion", "signsgd": "SignSGD", "normsgd": "NormSGD"}
_KEPT_CHECKPOINTS = 2
_EXPLODED = 10.0  # times the first loss: nothing is left to learn from, so the rest of the run is spared


class Interrupted(Exception):
    """The caller asked to stop; a checkpoint at this step is written."""


@dataclass
class Progress:
    """What happened up to `step`, and all of it that a checkpoint must carry besides weights and states."""

    step: int = 0
    loss: float = math.nan
    lr: float = math.nan
    seconds: float = 0.0
    first_loss: float = math.nan
    switched_at: int | None = None
    ended_by: str | None = None
    diverged: bool = False
    warnings: list[str] = field(default_factory=list)


def linear_then_cosine(step: int, warmup_steps: int, total_steps: int, div: float) -> float:
    """The hand-set baseline as a share of the peak rate, for the update with index `step` from 0."""
    if step < warmup_steps:
        return 1 / div + (1 - 1 / div) * step / warmup_steps
    return (1 + math.cos(math.pi * min(1.0, (step - warmup_steps) / (total_steps - warmup_steps)))) / 2


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """The configured optimizer over the model's parameters, grouped by the library."""
    try:
        optimizer: Optimizer = getattr(autowarm, _CLASSES[config.name]).from_model(
            model, lr=config.lr, weight_decay=config.weight_decay, **config.options
        )
    except (TypeError, ValueError) as error:
        raise LabError(
            f"optimizer: lr {config.lr}, weight_decay {config.weight_decay} and options {config.options} do not suit "
            f"{config.name}: {error}"
        ) from None
    return optimizer


def make_scheduler(optimizer: Optimizer, config: ScheduleConfig, steps: int) -> LRScheduler:
    """The configured schedule over `steps` updates."""
    if config.kind == "linear":
        warmup = config.warmup_steps or 0
        return LambdaLR(optimizer, lambda step: linear_then_cosine(step, warmup, steps, config.div))
    make: Callable[..., LRScheduler] = autowarm.AdaptiveWarmup
    if config.kind == "paper":
        make = autowarm.AdaptiveWarmup.paper
    with _explained():
        return make(
            optimizer, total_steps=steps, target_loss=config.target_loss, div=config.div,
            sigma_f2=config.sigma_f2, peak_gap=config.peak_gap,
        )  # fmt: skip


def train(
    config: RunConfig,
    folder: Path,
    on_step: Callable[[Progress], bool | None] | None = None,
    watch: Callable[[nn.Module, Optimizer], Watch] | None = None,
) -> dict[str, Any]:
    """Trains one run to its end, or on to its end where the folder holds an unfinished one.

    Args:
        config: the run.
        folder: its folder, made if need be.
        on_step: called after each step; returning True stops the run there, to be continued by a later call.
        watch: makes an observer of the updates, such as `autowarm.smoothness.Probe`. It must not disturb them; what it
            sees is no part of a checkpoint.

    Returns:
        The run's result, as in its `result.json`.

    Raises:
        LabError: the folder holds a run that differs from this one; the message lists the differences.
        Interrupted: `on_step` asked to stop.
    """
    with locked(folder):
        corpus = prepare(config.data, config.model.vocab_size)
        who = json.loads(json.dumps(identity(config, corpus.sha256)))
        if (result := _resume_or_claim(folder, who)) is not None:
            return result
        return _train(config, folder, who, corpus, on_step or (lambda progress: None), watch or (lambda *_: _unwatched))


def _train(
    config: RunConfig,
    folder: Path,
    who: dict[str, Any],
    corpus: Corpus,
    on_step: Callable[[Progress], bool | None],
    watch: Callable[[nn.Module, Optimizer], Watch],
) -> dict[str, Any]:
    torch.manual_seed(config.seed)
    model = llama(config.model, config.seed)
    optimizer = make_optimizer(model, config.optimizer)
    scheduler = make_scheduler(optimizer, config.schedule, config.steps)
    progress = Progress()

    if (saved := load_checkpoint(folder)) is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        torch.set_rng_state(saved["rng"])
        progress = Progress(**saved["progress"])
        logger.info("%s goes on from step %d", folder.name, progress.step)

    def save() -> None:
        log.flush()
        note_warnings()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state(),
                 "scheduler": scheduler.state_dict(), "progress": dataclasses.asdict(progress)}  # fmt: skip
        save_checkpoint(folder, progress.step, state)

    def note_warnings() -> None:
        ours = {str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)}
        progress.warnings = sorted(ours | set(progress.warnings))

    watched = watch(model, optimizer)
    log = MetricsLog(folder, progress.step)
    clock = time.perf_counter() - progress.seconds
    with log, warnings.catch_warnings(record=True) as caught:
        # What a scheduler warns of is kept with the result: a screen full of runs is no place for it.
        warnings.simplefilter("always")
        while progress.step < config.steps and not progress.diverged:
            tokens = torch.from_numpy(
                batch(corpus.train, config.seed, progress.step, config.batch_size, config.model.seq_len)
            )
            with watched(partial(backward, model, tokens)) as loss:
                if config.clip:
                    nn.utils.clip_grad_norm_(model.parameters(), config.clip)
                optimizer.step()
            rate = optimizer.param_groups[0]["lr"]
            advance(scheduler, loss.detach())
            optimizer.zero_grad()

            progress.step += 1
            progress.loss, progress.lr = loss.item(), float(rate)
            progress.seconds = time.perf_counter() - clock
            if progress.step == 1:
                progress.first_loss = progress.loss
            if progress.switched_at is None and getattr(scheduler, "phase", None) == "decay":
                progress.switched_at, progress.ended_by = progress.step, scheduler.ended_by  # type: ignore[attr-defined]
            progress.diverged = not progress.loss <= _EXPLODED * progress.first_loss  # so NaN counts, too
            log.write(progress)
            stop = on_step(progress)
            if stop or progress.step % config.checkpoint_every == 0:
                save()
            if stop:
                raise Interrupted(f"{folder.name} stopped after step {progress.step}")

        val_loss = math.nan if progress.diverged else evaluate(model, config, corpus)
    note_warnings()
    # Worse than before training is no result either, however finite.
    progress.diverged |= not val_loss <= progress.first_loss
    result = {
        "id": run_id(who),
        "cell": cell(config, corpus.name),
        "optimizer": config.optimizer.name,
        "schedule": config.schedule.kind,
        "warmup_steps": warmup_length(config, scheduler, progress),
        "seed": config.seed,
        "train_loss": finite(log.recent_loss(max(1, config.steps // 20))),
        "val_loss": finite(val_loss),
        "metric": {},
        "switched_at": progress.switched_at,
        "ended_by": progress.ended_by,
        "diverged": progress.diverged,
        "seconds": round(progress.seconds, 3),
        "tokens_per_second": round(progress.step * config.batch_size * config.model.seq_len / progress.seconds, 1),
        "warnings": progress.warnings,
    }
    save_weights(model, folder)
    write_json(folder / "result.json", result)
    for checkpoint in folder.glob("checkpoint-*.pt"):
        checkpoint.unlink()  # the run is over: forty runs' optimizer states are not worth their space
    return result


def backward(model: nn.Module, tokens: Tensor) -> Tensor:
    """Forward and backward pass; the loss."""
    loss = token_loss(model, tokens)
    loss.backward()
    return loss


@contextmanager
def _unwatched(forward_backward: Callable[[], Tensor]) -> Iterator[Tensor]:
    yield forward_backward()


@contextmanager
def _explained() -> Iterator[None]:
    """A schedule's objection to its settings, as something the user can put right."""
    try:
        yield
    except ValueError as error:
        raise LabError(f"schedule: {error}") from None


def advance(scheduler: LRScheduler, loss: Tensor) -> None:
    """One scheduler step; a loss is given to the schedules that look at it."""
    if isinstance(scheduler, autowarm.AdaptiveWarmup):
        with _explained():
            scheduler.step(loss)
    else:
        scheduler.step()


@torch.no_grad()
def evaluate(model: nn.Module, config: RunConfig, corpus: Corpus) -> float:
    """Mean loss over the fixed validation batches."""
    batches = validation_batches(corpus.val, config.eval_batches, config.batch_size, config.model.seq_len)
    losses = [token_loss(model, torch.from_numpy(tokens)).item() for tokens in batches]
    return math.fsum(losses) / len(losses)


def cell(config: RunConfig, corpus: str) -> dict[str, Any]:
    """What two runs must share to be compared: all but schedule and seed."""
    return {
        "task": corpus,
        "model": f"llama-{config.model.layers}x{config.model.width}",
        "optimizer": config.optimizer.name,
        "batch_size": config.batch_size,
        "steps": config.steps,
        "lr": config.optimizer.lr,
    }


def warmup_length(config: RunConfig, scheduler: LRScheduler, progress: Progress) -> int:
    """Updates spent in warm-up; all of them where an adaptive run never left it."""
    if config.schedule.kind == "linear":
        return config.schedule.warmup_steps or 0
    return int(scheduler.warmup_steps) if progress.switched_at is not None else progress.step  # type: ignore[attr-defined]


def finite(value: float) -> float | None:
    """The value, or null for JSON where there is none."""
    return value if math.isfinite(value) else None


class MetricsLog:
    """Metrics to `metrics.jsonl` and TensorBoard, flushed in batches; starts behind the checkpoint's last step."""

    _EVERY = 50

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.path = folder / "metrics.jsonl"
        kept = [row for row in read_metrics(folder) if row["step"] <= step]
        self.losses = [row["loss"] if row["loss"] is not None else math.nan for row in kept]
        # Steps after the checkpoint are done again: their lines go, so that none is counted twice.
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        self.board = SummaryWriter(str(folder), purge_step=step + 1)
        self.pending: list[str] = []

    def write(self, progress: Progress) -> None:
        """Notes one step."""
        self.losses.append(progress.loss)
        row = {"step": progress.step, "loss": finite(progress.loss), "lr": progress.lr,
               "seconds": round(progress.seconds, 4)}  # fmt: skip
        self.pending.append(json.dumps(row) + "\n")
        self.board.add_scalar("loss", progress.loss, progress.step)
        self.board.add_scalar("lr", progress.lr, progress.step)
        if len(self.pending) >= self._EVERY:
            self.flush()

    def flush(self) -> None:
        """Puts the notes on disk."""
        with open(self.path, "a") as file:
            file.writelines(self.pending)
        self.pending.clear()

    def recent_loss(self, count: int) -> float:
        """Mean of the last `count` training losses."""
        recent = self.losses[-count:]
        return math.fsum(recent) / len(recent) if all(map(math.isfinite, recent)) else math.nan

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()
        self.board.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The steps noted so far; a line cut off by a crash ends the list."""
    rows: list[dict[str, Any]] = []
    with suppress(OSError, ValueError):
        rows.extend(json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return rows


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any]) -> None:
    """Writes a checkpoint whose name carries its checksum, so that the two cannot part, and drops the oldest."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    data = buffer.getvalue()
    write_atomically(folder / f"checkpoint-{step:08d}-{sha256(data)[:16]}.pt", data)
    for old in sorted(folder.glob("checkpoint-*.pt"))[:-_KEPT_CHECKPOINTS]:
        old.unlink()


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is whole, or None; a damaged one is set aside and the log says so."""
    for path in sorted(folder.glob("checkpoint-*.pt"), reverse=True):
        data = path.read_bytes()
        if sha256(data)[:16] == path.stem.rsplit("-", 1)[-1]:
            state: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True)
            return state
        logger.warning("%s does not match its checksum: it is set aside and the one before it is used", path)
        path.rename(path.with_suffix(".damaged"))
    return None


def _resume_or_claim(folder: Path, who: dict[str, Any]) -> dict[str, Any] | None:
    """The finished result of this very run, or None after making the folder this run's own."""
    path = folder / "config.yaml"
    if path.exists():
        if changed := differences(yaml.safe_load(path.read_text()), who):
            raise LabError(f"{folder} holds another run ({'; '.join(changed)}): choose another folder or delete it")
        if (folder / "result.json").exists():
            result: dict[str, Any] = json.loads((folder / "result.json").read_text())
            return result
    else:
        write_atomically(path, yaml.safe_dump(who, sort_keys=False, allow_unicode=True))
    return None
