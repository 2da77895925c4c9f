"""The one training loop, on one process or on the ranks that `torchrun` starts.

A run is a folder::

    config.yaml        the resolved config
    metrics.jsonl      one line per step: loss before the update, the update's rate and gradient norm, seconds so far,
                       tokens per second, and what has changed of `AdaptiveWarmup.metrics`, as autowarm/…; after an
                       evaluation also its scores, as val_…; with `engine.curvature_every` the paper's K^t, and the
                       curvature along the step in ℓ2; with `engine.sharpness_every` the Hessian's λ_max
    events.out.*       the same for TensorBoard
    checkpoint-STEP/   the newest few, while the run lasts and if it diverges
    model.safetensors  the final weights, unless they are broken, with a config.json so that transformers can load them
    result.json        written at the end, with checksums of the weights and the metrics

Called again on such a folder, `train` resumes from the newest intact checkpoint. The result is bit-identical to that of
an uninterrupted run.
"""

import dataclasses
import itertools
import json
import logging
import math
import signal
import sys
import time
import warnings
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autowarm import AdaptiveWarmup
from autowarm.integrations.metrics import loggable_metrics
from autowarm.optim.step.nonfinite import Diverged
from autowarm.smoothness import Probe

from ..config import LabError, RunConfig, UsageError
from ..errors import as_usage_error
from ..files import locked, sha256, write_json
from ..processes import Interrupted, Stop
from ..registry import SCHEDULES
from ..tasks import Batch, Task, identity, make_task, run_id
from ..tasks.models import save_weights
from ..tasks.own import PackedTask, blamed
from .checkpoint import Checkpoints, origin, own_checkpoints, resume_or_claim, step_of, whole_weights
from .metrics import MetricsLog, OnStep, Progress, finite, read_metrics, write_log
from .optimizers import evaluating, unchanged
from .parallel import Ranks, joined
from .schedules import lower, make_scheduler, recovers, warmup_length
from .setup import Setup, precision_of
from .sharpness import sharpness

logger = logging.getLogger(__name__)

_CHECKED = ("model.safetensors", "metrics.jsonl")  # files whose checksums the result holds
# A loss above this many times the first one ends the run as diverged.
_EXPLODED = 10.0
_LARGEST_EXPONENT = math.log(sys.float_info.max)


def train(
    config: RunConfig, folder: Path, on_step: OnStep | None = None, stop: Stop | None = None,
    own: PackedTask | None = None, resume_from: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train one run to its end and return its result. If the folder holds an unfinished run, resume it.

    Args:
        folder: created if needed; the same on all ranks.
        on_step: called after each step. If it returns True, the run stops there, and a later call can resume it.
        own: the user's task, if the config names none of the lab's.
        resume_from: the checkpoint of another run, with which this one begins; see `checkpoint.origin`.

    Raises:
        LabError: the folder holds another run, or ranks were given different runs; the message lists the differences.
        Interrupted: `on_step` or a signal asked to stop.
    """
    with joined(config.engine) as ranks, ExitStack() as contexts:
        if own is not None:
            contexts.enter_context(blamed(own.file, Interrupted))
        if ranks.world > 1:
            ranks.agree(identity(config, ""))
        if config.task is not None and ranks.world > 1:
            raise LabError(f"the task {config.task!r} runs on one process and there are {ranks.world} ranks")

        def claim() -> Task:
            contexts.enter_context(locked(folder))
            return make_task(config, own)

        # The first rank prepares the data for all.
        task = ranks.first(claim, shared=False) or make_task(config, own)
        who = json.loads(json.dumps(identity(config, task.sha256)))
        ranks.agree(who)  # compares the data too: machines may hold different files under one name
        if resume_from is not None:
            who["resumes"] = ranks.first(lambda: origin(resume_from, config))
        name, precision = run_id(who), precision_of(task, ranks.device)
        ran_as = {**who, "precision": precision, "task": dict(own.attributes) if own else {}}
        if (result := ranks.first(lambda: resume_or_claim(folder, name, ran_as))) is not None:
            return result
        with warnings.catch_warnings(record=True) as caught:
            # Keep schedulers' warnings with the result instead of printing them between the progress of many runs.
            warnings.simplefilter("always")
            run = _Run(folder, task, ranks, name, stop or Stop(), caught, resume_from)
            return run.finish(on_step)


class _Run:
    """One run, starting from its folder's last checkpoint."""

    def __init__(
        self, folder: Path, task: Task, ranks: Ranks, name: str, stop: Stop, caught: list[warnings.WarningMessage],
        start: Path | None,
    ) -> None:  # fmt: skip
        self.config, self.folder, self.task, self.ranks, self.name = task.config, folder, task, ranks, name
        self.stop, self.caught, config = stop, caught, task.config
        self.setup = setup = Setup(task, ranks)
        self.model, self.net, self.optimizer = setup.model, setup.net, setup.optimizer
        self.scheduler = make_scheduler(self.optimizer, config.schedule, config.steps, self.model)
        self.guard: Any = getattr(self.scheduler, "_guard", None)
        self.watches = SCHEDULES[config.schedule.kind].watches
        self.progress = Progress()
        self.checkpoints = Checkpoints(folder, ranks, name, keep=config.engine.keep_checkpoints)
        peaks = [group.get("initial_lr") for group in self.optimizer.param_groups]
        if (saved := self.checkpoints.load(self.model, self.optimizer, start)) is not None:
            with as_usage_error("schedule: "):
                self.scheduler.load_state_dict(saved["scheduler"])
            if "copy" in saved and self.guard is not None:
                self.guard.adopt(*saved["copy"])
            self.progress = Progress(**saved["progress"])
            if start is not None and saved["begins"]:
                lower(self.scheduler, self.optimizer, peaks)
                ranks.first(lambda: write_log(folder, read_metrics(start.parent)[: self.progress.step]))
            logger.info("%s resumes from step %d", folder.name, self.progress.step)
        self.skipped = getattr(self.optimizer, "skipped_updates", 0)
        self.probe: Probe | None = None
        if config.engine.curvature_every:
            with as_usage_error("engine.curvature_every: "):
                self.probe = Probe(self.net, self.optimizer, every=config.engine.curvature_every)
            self.probe.step = self.progress.step  # it goes on where the run does

    def finish(self, on_step: OnStep | None) -> dict[str, Any]:
        """Train to the end, evaluate, and write and return the result."""
        config, progress, engine = self.config, self.progress, self.config.engine
        log = MetricsLog(self.folder, progress.step, self.name, self.task, quiet=self.ranks.rank > 0)
        with closing(log):
            if progress.step == 0 and self.task.file is not None:
                self.evaluate(limit=1)  # find a mistake in the user's validation now, not after the last step
            with self.stop.gently():
                self._train(on_step, log)
            scores = {"loss": math.nan} if progress.diverged else self._judge(config.whole_validation)
        self._note_warnings()
        broken = not scores["loss"] <= self._bound(_EXPLODED)
        progress.diverged |= not scores["loss"] <= self._bound(1.0)  # also diverged: worse than before training
        stays = progress.diverged and engine.keep_weights  # to go on from a checkpoint at a lower rate
        size, recent = self.task.examples, log.losses[-max(1, config.steps // 20) :]  # empty: update 1 diverged
        result = {
            "id": self.name, "cell": {"task": self.task.name, **config.cell}, "optimizer": config.optimizer.name,
            "schedule": config.schedule.kind,
            "warmup_steps": warmup_length(config.schedule, self.scheduler, progress.step), "seed": config.seed,
            "first_loss": finite(progress.first_loss),
            "train_loss": math.fsum(recent) / len(recent) if recent and all(map(math.isfinite, recent)) else None,
            "val_loss": finite(scores.pop("loss")),
            "metric": {key: finite(value) for key, value in scores.items()},
            "switched_at": progress.switched_at, "ended_by": progress.ended_by, "diverged": progress.diverged,
            "seconds": round(progress.seconds, 3), "eval_seconds": round(progress.eval_seconds, 3),
            "tokens_per_second": round(progress.step * size / progress.seconds, 1) if size and recent else None,
            "warnings": progress.warnings,
        }  # fmt: skip
        if stays:
            earlier = [path.name for path in own_checkpoints(self.folder) if step_of(path) != config.steps]
            result["resume_from"] = earlier[-1] if earlier else None
        keeps_weights = engine.keep_weights and not broken
        with evaluating(self.optimizer), self.stop.gently():  # the weights that were judged
            weights = whole_weights(self.model, self.ranks) if keeps_weights else None
            if self.ranks.rank == 0:
                if keeps_weights:
                    save_weights(self.model, self.folder, weights)
                result["files"] = {name: sha256(path) for name in _CHECKED if (path := self.folder / name).exists()}
                write_json(self.folder / "result.json", result)
            if not stays:
                self.checkpoints.drop()
        return result

    def _train(self, on_step: OnStep | None, log: MetricsLog) -> None:
        config, progress = self.config, self.progress
        every, sharp = config.engine.eval_every, config.engine.sharpness_every
        clock = time.perf_counter() - progress.seconds - progress.eval_seconds
        batches = self.task.batches(progress.step, self.setup.rows)
        while progress.step < config.steps:
            measured = {"sharpness": self._sharpness()} if sharp and progress.step % sharp == 0 else {}
            # Random numbers depend only on seed, step and rank, so no generator's state needs saving.
            words = np.random.SeedSequence([config.seed, progress.step, self.ranks.rank])
            self.ranks.seed(int(words.generate_state(1)[0]))
            batch = next(batches)
            try:
                loss, grad_norm, progress.lr = self._update(batch)
            except Diverged as error:  # by max_nonfinite, the schedule's or the optimizer's
                progress.diverged = True
                progress.warnings.append(str(error))
                return

            progress.step += 1
            # A step waits for the device only here.
            numbers = torch.stack((loss, grad_norm.to(loss.dtype))).tolist()
            progress.loss, norm = self.ranks.mean(*numbers)
            progress.grad_norm = norm if config.clip else math.nan
            progress.seconds = time.perf_counter() - clock - progress.eval_seconds
            if not math.isfinite(progress.first_loss):
                progress.first_loss = progress.loss
            if progress.switched_at is None and getattr(self.scheduler, "phase", None) == "decay":
                progress.switched_at, progress.ended_by = progress.step, self.scheduler.ended_by
            if not recovers(config.schedule):  # one that does has its own limit
                if not math.isfinite(progress.loss) or not math.isfinite(norm):
                    # Unless our optimizer has skipped the update; after too many in a row it raises Diverged.
                    before, self.skipped = self.skipped, getattr(self.optimizer, "skipped_updates", 0)
                    progress.diverged = self.skipped <= before
                else:
                    progress.diverged = progress.loss > self._bound(_EXPLODED)
            if self.probe is not None and self.probe.points:  # that of this update
                point = self.probe.points.pop()
                measured |= {"curvature": point.smoothness, "curvature_l2": point.curvature_l2}
            last = progress.step == config.steps
            scores = self._judge() if every and progress.step % every == 0 and not last else None
            log.write(progress, scores, self._state_of_schedule(), measured)
            asked = signal.SIGINT if on_step is not None and on_step(progress) else 0
            if progress.diverged:
                return  # its weights are in no checkpoint
            wanted = self.ranks.largest(self.stop.asked or asked)  # a signal reaches ranks at different steps
            if wanted or last or progress.step % config.checkpoint_every == 0:
                log.flush()
                self._note_warnings()
                self.ranks.share_buffers(self.model)
                rest = {"scheduler": self.scheduler.state_dict(), "progress": dataclasses.asdict(progress)}
                self.checkpoints.save(progress.step, self.model, self.optimizer, rest, self.guard)
            if wanted:
                raise Interrupted(f"{self.folder.name} stopped after update {progress.step}", wanted)

    def _state_of_schedule(self) -> dict[str, float | int | str]:
        """The schedule's state for the log, of ours alone, and how many updates our optimizer has skipped, if any."""
        skipped = getattr(self.optimizer, "skipped_updates", 0)
        state: dict[str, float | int | str] = {"skipped_updates": skipped} if skipped else {}
        if isinstance(self.scheduler, AdaptiveWarmup):
            state |= loggable_metrics(self.scheduler)
            if self.scheduler.ended_by is not None:
                state["autowarm/ended_by"] = self.scheduler.ended_by
        return state

    def _bound(self, share: float) -> float:
        """Return the largest loss that does not count as divergence: `share` × the first, if `first_bounds` is set."""
        return share * self.progress.first_loss if self.task.first_bounds else sys.float_info.max

    def _update(self, batch: Batch) -> tuple[Tensor, Tensor, float]:
        """Make one update. Return the loss before it, the gradient's norm (0 without clipping) and the rate."""
        config = self.config
        pieces = self.setup.pieces(batch)

        def work() -> Tensor:
            return self.setup.forward_backward(pieces)

        with nullcontext(work()) if self.probe is None else self.probe(work) as loss:
            norm = torch.zeros((), device=self.ranks.device)
            if config.clip:
                norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
                norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            self.optimizer.step()
        rate = float(self.optimizer.param_groups[0]["lr"])
        with as_usage_error("schedule: "):
            self.scheduler.step(*((loss.detach(),) if self.watches else ()))
        self.optimizer.zero_grad()
        return loss.detach(), norm, rate

    def _sharpness(self) -> float:
        """Return λ_max of the Hessian on the first validation batch; the run goes on as if nobody had asked."""
        if self.ranks.world > 1:
            raise UsageError("engine.sharpness_every needs the whole model on one process: set it to 0 under torchrun")
        with unchanged(self.model):
            [piece, *_] = self.setup.pieces(next(self.task.validation(self.setup.rows)))
            params = [p for p in self.model.parameters() if p.requires_grad]
            return sharpness(lambda: self.task.loss(self.model, piece), params, iterations=25, tolerance=1e-2)

    def _judge(self, whole: bool = False) -> dict[str, float]:
        """Evaluate the weights to be judged; the time counts as evaluation's."""
        began = time.perf_counter()
        with evaluating(self.optimizer):
            scores = self.evaluate(whole=whole)
        self.progress.eval_seconds += time.perf_counter() - began
        return scores

    @torch.no_grad()
    def evaluate(self, limit: int | None = None, whole: bool = False) -> dict[str, float]:
        """Average over the fixed validation batches, or the first few, or all that there are, split over the ranks."""
        collected: dict[str, list[Tensor]] = {}
        training = self.net.training
        with unchanged(self.model):
            self.ranks.share_buffers(self.model)  # what is judged are the weights that rank 0 stores
            self.net.eval()
            for batch in itertools.islice(self.task.validation(self.setup.rows, whole), limit):
                for piece in self.setup.pieces(batch):
                    with self.setup.cast():
                        scores = self.task.scores(self.net, piece)
                    for key, value in scores.items():
                        collected.setdefault(key, []).append(value.reshape(()))
            self.net.train(training)
        # Here it waits for the device.
        means = [math.fsum(torch.stack(values).tolist()) / len(values) for values in collected.values()]
        judged = dict(zip(collected, self.ranks.mean(*means), strict=True))
        if self.task.predicts_tokens:
            judged["perplexity"] = math.exp(judged["loss"]) if judged["loss"] < _LARGEST_EXPONENT else math.inf
        return judged

    def _note_warnings(self) -> None:
        ours = {str(warning.message) for warning in self.caught if issubclass(warning.category, UserWarning)}
        self.progress.warnings = sorted(ours | set(self.progress.warnings))
