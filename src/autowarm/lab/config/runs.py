"""The settings of a run, as frozen, typed dataclasses. Nothing here imports torch."""

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from ..errors import require
from ..registry import OPTIMIZERS, SCHEDULES, SMALL_TASKS, check, either


@dataclass(frozen=True)
class ModelConfig:
    """A LLaMA (RMSNorm, SwiGLU, rotary positions, tied embeddings, split q, k, v), or a classifier of images.

    Args:
        name: "llama", "swin" (a Swin of two stages for small images), or "swin_base_patch4_window7_224", the paper's,
            which brings its own shape.
        layers: number of blocks; for a "swin", in each stage.
        width: size of the residual stream; for a "swin", in its first stage.
        heads: attention heads; divides `width`.
        ff: inner width of the SwiGLU block.
        vocab_size: tokens the tokenizer may learn.
        seq_len: tokens in a sequence.
        init_scale: initial weights have the standard deviation init_scale/√width, 0.02 at width 768.
        scaled_residual: divide the deviation of the projections that write to the residual stream (attention's output
            and the MLP's) by √(2·layers), as GPT-2 does. Of a "llama" only, as all that follow.
        norm_eps: ε of RMSNorm.
        fused_qkv: keep q, k and v as one matrix for the optimizer and κ; the weights are saved apart.
    """

    name: str = "llama"
    layers: int = 2
    width: int = 64
    heads: int = 4
    ff: int = 176
    vocab_size: int = 1024
    seq_len: int = 64
    init_scale: float = 0.55
    scaled_residual: bool = False
    norm_eps: float = 1e-6
    fused_qkv: bool = False

    @property
    def sees_images(self) -> bool:
        """Whether it classifies images instead of predicting tokens."""
        return self.name != "llama"

    @property
    def label(self) -> str:
        return self.name if self.name not in ("llama", "swin") else f"{self.name}-{self.layers}x{self.width}"


MODELS = "llama", "swin", "swin_base_patch4_window7_224"

# The paper's networks: 123,587,328 and 208,540,416 parameters.
LLAMA_124M = ModelConfig(layers=12, width=768, heads=12, ff=2048, vocab_size=50304, seq_len=512)
LLAMA_210M = dataclasses.replace(LLAMA_124M, layers=24)


@dataclass(frozen=True)
class DataConfig:
    """The source of the text or of the images.

    Args:
        corpus: "python", the interpreter's own documentation and standard library; a text file or a folder of them
            (.txt, .md, .rst, .py), for which the lab trains a tokenizer; or token shards like kjj0/fineweb10B-gpt2's.
        max_bytes: read at most this much text, file by file, in an order that mixes topics; shards are used whole.
        sampling: "random" draws sequences anywhere in the text, with replacement; "epochs" takes each once before any
            again, in a new order each time.
        images: the classifier's images. "digits" are scikit-learn's 8×8 digits, which need no download; "hfds/NAME" is
            a data set of the Hugging Face Hub for the paper's Swin, such as "hfds/ILSVRC/imagenet-1k".
        workers: processes that read and transform images.
    """

    corpus: str = "python"
    max_bytes: int = 6_000_000
    sampling: Literal["random", "epochs"] = "random"
    images: str = "digits"
    workers: int = 0


@dataclass(frozen=True)
class OptimizerConfig:
    """An optimizer and its peak rate.

    Args:
        name: muon, lion, signsgd, normsgd, or a peer from torch or its authors' package: adamw, radam, schedule-free,
            prodigy or d-adaptation.
        lr: the peak learning rate; for Prodigy or D-Adaptation a factor on the rate that it finds, usually 1.
        weight_decay: decoupled weight decay, on the linear layers' weights only.
        options: further arguments of the optimizer's `from_model`, or of the peer's class, for example {momentum: 0.9}.
    """

    name: str = "muon"
    lr: float = 3e-3
    weight_decay: float = 0.1
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ScheduleConfig:
    """How the rate changes over a run.

    Args:
        kind: adaptive, the library's default; paper, Algorithm 1 to the letter; linear, the hand-set baseline, which
            rises from lr/div over `warmup_steps`; untuned, a warm-up of 2/(1 − β2) updates; constant; greedy,
            transformers' GreedyLR from lr/div; or wsd, transformers' warmup-stable-decay, 10% and 20% of the run.
        warmup_steps: length of a "linear" warm-up, 0 for none; the other kinds set it themselves.
        warmup: shape of the hand-set warm-up, of the adaptive ramp and of the calibration's target.
        decay: of adaptive, paper or linear: those of `autowarm.AdaptiveWarmup`, or wsd-tenth, which falls over the
            last tenth.
        target_loss: f*, required by "paper"; "adaptive" estimates it if it is null; the others have none.
        div: the first update's rate is lr/div, for adaptive, paper, linear or greedy. Null is warmup_steps + 1
            for "linear", so that the ramp starts from 0 in equal steps; the library's default for "adaptive"; and 100
            for the rest of these.
        sigma_f2: σ_F² of the calibration, for "paper".
        peak_gap: Δ', instead of the calibrated one, for "adaptive" and "paper".
        options: further keyword arguments of `autowarm.AdaptiveWarmup`, for example {max_warmup: 0.2}.
    """

    kind: str = "adaptive"
    warmup_steps: int | None = None
    warmup: Literal["linear", "cosine"] = "linear"
    decay: Literal["cosine", "linear", "wsd", "wsd-tenth", "wso"] = "cosine"
    target_loss: float | None = None
    div: float | None = None
    sigma_f2: float = 1e3
    peak_gap: float | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The schedule as a run's name has it."""
        entry = SCHEDULES[self.kind]
        return f"warm-up {self.warmup_steps}" if entry.by_hand else entry.title or self.kind

    @property
    def label(self) -> str:
        if not SCHEDULES[self.kind].by_hand:
            return self.kind
        return f"{self.kind}{self.warmup_steps}" + ("" if self.div is None else f"-div{self.div:g}")


@dataclass(frozen=True)
class EngineConfig:
    """How a run is computed. These settings change its result by rounding errors only.

    Args:
        precision: auto, float32, bfloat16 or float64. "bfloat16" is autocast; "auto" picks it if the hardware has
            bfloat16, and on a CPU from width 256 on.
        accumulate: split each rank's share of a batch into this many micro-batches, to save memory.
        compile: compile the model with `torch.compile`.
        parallel: ddp copies the model to every rank of `torchrun`, fsdp (FSDP2) shards it.
        device: "auto" uses a GPU if there is one.
        keep_checkpoints: how many of the newest checkpoints to keep.
        eval_every: steps between evaluations; 0 evaluates at the end only.
        wandb: Weights & Biases project to log to; with WANDB_MODE=offline it only writes to the run's folder.
        curvature_every: log the paper's K^t at every n-th update, which then costs about 2.1 plain ones; 0 for none.
        sharpness_every: log the Hessian's largest eigenvalue, on the first validation batch, before every n-th update;
            0 for none.
        keep_weights: leave the final weights and TensorBoard's events in the run's folder.
    """

    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    accumulate: int = 1
    compile: bool = False
    parallel: Literal["ddp", "fsdp"] = "ddp"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    keep_checkpoints: int = 2
    eval_every: int = 0
    wandb: str | None = None
    curvature_every: int = 0
    sharpness_every: int = 0
    keep_weights: bool = True


# What a run's numbers must be, and that in words; null is always allowed where a key may be null.
_RANGES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("model.layers model.width model.ff model.seq_len model.heads steps batch_size eval_batches checkpoint_every "
     "engine.accumulate engine.keep_checkpoints data.max_bytes", lambda x: x > 0, "be at least 1"),
    ("engine.eval_every engine.curvature_every engine.sharpness_every data.workers clip optimizer.weight_decay",
     lambda x: 0 <= x < math.inf, "not be negative"),
    ("model.init_scale model.norm_eps optimizer.lr schedule.sigma_f2 schedule.peak_gap",
     lambda x: 0 < x < math.inf, "be positive and finite"),
    ("data.corpus", bool, "not be empty"),
    ("model.vocab_size", lambda x: 256 < x <= 65536, "be from 257 (bytes and an end mark) to 65536"),
    ("schedule.div", lambda x: 1 < x < math.inf, "be above 1 and finite"),
    ("schedule.target_loss", math.isfinite, "be finite"),
    ("seed order", lambda x: 0 <= x < 2**63, "be from 0 to 2⁶³ − 1"),
)  # fmt: skip


# What a task brings itself, and what only one kind of network reads.
BROUGHT = ("model", "data", "batch_size", "eval_batches", "whole_validation", "engine.accumulate")
OF_TEXT = ("model.ff", "model.vocab_size", "model.seq_len", "model.init_scale", "model.scaled_residual",
           "model.norm_eps", "model.fused_qkv", "data.corpus", "data.max_bytes", "data.sampling")  # fmt: skip
OF_IMAGES = ("data.images", "data.workers")


@dataclass(frozen=True)
class RunConfig:
    """All settings of one run.

    Args:
        task: a small task with its own model, data and batch, lm-small or mlp, or after `train --task` your
            own, FILE.py:NAME. Null trains `model` on `data`.
        model: the network.
        data: the text.
        optimizer: the optimizer.
        schedule: the learning-rate schedule.
        steps: number of optimizer updates.
        batch_size: sequences or images per batch, over all ranks of `torchrun` together.
        seed: seed of the initial weights and of the batches.
        order: separate seed of the batches; null uses `seed`.
        clip: clip the gradient's norm to this before each update; 0 does not clip.
        eval_batches: number of validation batches, the same ones for every run.
        whole_validation: at the end evaluate on the whole validation part instead, in batches that do not overlap. A
            last batch that is not full is left out, so compare runs of one `batch_size`.
        checkpoint_every: steps between checkpoints.
        engine: how the run is computed.
    """

    task: str | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    steps: int = 400
    batch_size: int = 16
    seed: int = 0
    order: int | None = None
    clip: float = 0.5
    eval_batches: int = 64
    whole_validation: bool = False
    checkpoint_every: int = 100
    engine: EngineConfig = field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        model, schedule = self.model, self.schedule
        unset = RunConfig() if self.task else self
        for name in BROUGHT:
            require(attrgetter(name)(self) == attrgetter(name)(unset),
                    f"{name} has no effect with a task, which brings its own model, data and batches")  # fmt: skip
        if not self.is_own_task:
            if self.task is not None:
                check("task", self.task, SMALL_TASKS, "task")
            check("optimizer.name", self.optimizer.name, OPTIMIZERS)
        check("schedule.kind", schedule.kind, SCHEDULES)
        check("model.name", model.name, MODELS)
        require(self.data.images == "digits" or self.data.images.startswith("hfds/"),
                f"data.images must be digits or hfds/NAME, got {self.data.images!r}")  # fmt: skip
        for paths, holds, need in _RANGES:
            for path in paths.split():
                value = attrgetter(path)(self)
                name = path.removeprefix("model.").removeprefix("optimizer.").replace("schedule.", "schedule: ")
                require(value is None or holds(value), f"{name} must {need}, got {value}")
        width, heads, size, count = model.width, model.heads, self.batch_size, self.engine.accumulate
        require(width % (2 * heads) == 0,
                f"width must be a multiple of 2·heads (rotary pairs), got width {width}, heads {heads}")  # fmt: skip
        require(size % count == 0,
                f"batch_size must be a multiple of engine.accumulate, got {size} and {count}")  # fmt: skip
        llamas = [name for name in ("scaled_residual", "norm_eps", "fused_qkv")
                  if getattr(model, name) != getattr(ModelConfig, name)]  # fmt: skip
        require(not (llamas and model.sees_images),
                f"model.{' and '.join(llamas)} belong to a llama, got model.name {model.name}")  # fmt: skip
        kind, length, last = SCHEDULES[schedule.kind], schedule.warmup_steps, self.steps - 1
        require(not kind.by_hand or (length is not None and 0 <= length <= last),
                f"{schedule.kind} needs warmup_steps from 0 to steps − 1 = {last}, got {length}")  # fmt: skip
        by_hand = either(name for name, one in SCHEDULES.items() if one.by_hand)
        require(kind.by_hand or length is None,
                f"schedule.warmup_steps belongs to kind {by_hand}; kind {schedule.kind} has none to set")  # fmt: skip
        require(schedule.peak_gap is None or schedule.sigma_f2 == ScheduleConfig.sigma_f2,
                "schedule.sigma_f2 calibrates Δ', and schedule.peak_gap gives Δ': set one of them")  # fmt: skip
        require(not kind.needs_target or schedule.target_loss is not None,
                "the paper's Algorithm 1 needs schedule.target_loss, its f*")  # fmt: skip

    @property
    def missing_corpus(self) -> str:
        """What is said of a corpus that is neither there nor Python's; it costs nothing before PyTorch is loaded."""
        corpus = self.data.corpus
        there = self.task or self.model.sees_images or corpus == "python" or Path(corpus).exists()
        return "" if there else f"data.corpus {corpus}: no such file or folder; give text, token shards or 'python'"

    @property
    def is_own_task(self) -> bool:
        """Whether the task is code beside the lab's, such as the user's. No config file can name it."""
        return self.task is not None and "@" in self.task

    @property
    def cell(self) -> dict[str, Any]:
        """The settings, beside the task, that two runs must share to be compared: all but schedule and seed."""
        model, size = (self.model.label, self.batch_size) if self.task is None else ("", None)
        return {"model": model, "optimizer": self.optimizer.name, "batch_size": size, "steps": self.steps,
                "lr": self.optimizer.lr}  # fmt: skip

    @property
    def label(self) -> str:
        name = re.sub(r"[^\w.=+-]", "_", self.optimizer.name)  # a user's may have any characters
        return f"{name}-lr{self.optimizer.lr:g}-{self.schedule.label}-seed{self.seed}"
