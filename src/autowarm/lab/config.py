"""What decides a run: frozen, typed dataclasses, and the id that follows from them.

A preset is a YAML file with the same keys (`presets/`); the command line overrides single keys by their dotted path,
`--run.model.width 128`. Nothing in here imports torch.
"""

import dataclasses
import difflib
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import yaml

OPTIMIZERS = ("muon", "lion", "signsgd", "normsgd", "adamw", "schedule-free", "prodigy", "d-adaptation")
PRESETS = Path(__file__).parent / "presets"

OptimizerName = Literal["muon", "lion", "signsgd", "normsgd", "adamw", "schedule-free", "prodigy", "d-adaptation"]
ScheduleName = Literal["adaptive", "paper", "linear", "constant", "greedy"]


class LabError(Exception):
    """Something the user can put right; the command line shows the message alone, without a traceback."""


@dataclass(frozen=True)
class ModelConfig:
    """A LLaMA (RMSNorm, SwiGLU, rotary positions, tied embeddings, split q, k, v), or a classifier of images.

    Args:
        name: "llama"; "swin", a Swin of two stages for small pictures; or any classifier by timm's name for it, such as
            "swin_base_patch4_window7_224", which has a shape of its own.
        layers: number of blocks; of a "swin", in each stage.
        width: size of the residual stream; of a "swin", in its first stage.
        heads: attention heads; divides `width`.
        ff: inner width of the SwiGLU block.
        vocab_size: tokens the tokenizer may learn.
        seq_len: tokens in a sequence.
        init_scale: initial weights have the standard deviation init_scale/√width. The usual 0.02 is this rule's
            value at width 768 and far too small for a narrow model: Lion then wants no warm-up at all.
    """

    name: str = "llama"
    layers: int = 2
    width: int = 64
    heads: int = 4
    ff: int = 176
    vocab_size: int = 1024
    seq_len: int = 64
    init_scale: float = 0.55

    @property
    def sees_images(self) -> bool:
        """Whether it classifies images and does not predict tokens."""
        return self.name != "llama"

    @property
    def label(self) -> str:
        """The network in a word."""
        return self.name if self.name not in ("llama", "swin") else f"{self.name}-{self.layers}x{self.width}"


# The paper's networks: 123,587,328 and 208,540,416 parameters.
LLAMA_124M = ModelConfig(layers=12, width=768, heads=12, ff=2048, vocab_size=50304, seq_len=512)
LLAMA_210M = dataclasses.replace(LLAMA_124M, layers=24)


@dataclass(frozen=True)
class DataConfig:
    """Where the text comes from, or the images.

    Args:
        corpus: "python" is the running interpreter's own documentation and standard-library source, so nothing is
            downloaded; otherwise a folder: of token shards, as `autowarm data` makes them or as kjj0/fineweb10B-gpt2
            holds them, or of .py, .md, .rst, .txt and .parquet files, for which a tokenizer is learnt.
        max_bytes: take only so much text, file by file in an order that mixes topics; shards are used whole.
        images: of a classifier. "digits" are scikit-learn's, 8×8, nothing is downloaded; "folder" is `root` with a
            folder, or a tar file, of training images and one of validation images; otherwise what timm calls it, such
            as "hfds/ILSVRC/imagenet-1k".
        root: the folder of `images`.
        workers: processes that read and transform images.
    """

    corpus: str = "python"
    max_bytes: int = 6_000_000
    images: str = "digits"
    root: str = ""
    workers: int = 0


@dataclass(frozen=True)
class OptimizerConfig:
    """An optimizer and its peak rate.

    Args:
        name: which one; the last four are the peers of `autowarm.lab.peers`.
        lr: the peak learning rate; of Prodigy and D-Adaptation a factor on the rate they find, usually 1.
        weight_decay: decoupled, on the linear layers' weights only.
        options: further keyword arguments of the optimizer's `from_model`, or of the peer itself, for example
            {momentum: 0.9}.
    """

    name: OptimizerName = "muon"
    lr: float = 3e-3
    weight_decay: float = 0.1
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ScheduleConfig:
    """How the rate moves.

    Args:
        kind: "adaptive" is the library's default, "paper" its Algorithm 1 to the letter, "linear" the hand-set
            baseline: lr/div rises to lr over `warmup_steps`, then the decay. "constant" leaves the rate alone, for
            optimizers that schedule themselves; "greedy" is transformers' GreedyLR between lr/div and lr.
        warmup_steps: of "linear" alone; the others find it themselves or have none.
        warmup: the shape of the warm-up: of the hand-set one, of the adaptive floor and of the calibration's target.
        decay: the shape of the decay, see `autowarm.AdaptiveWarmup`.
        target_loss: f*, of "paper" (which needs it) and "adaptive" (which works it out where it is null).
        div: the first update's rate is lr/div; null is the library's default for "adaptive" and 100 for the others.
        sigma_f2: σ_F² of the calibration; "adaptive" and "paper".
        peak_gap: Δ' itself, in place of the calibrated one; "adaptive" and "paper".
    """

    kind: ScheduleName = "adaptive"
    warmup_steps: int | None = None
    warmup: Literal["linear", "cosine"] = "linear"
    decay: Literal["cosine", "linear", "wsd", "wso"] = "cosine"
    target_loss: float | None = None
    div: float | None = None
    sigma_f2: float = 1e3
    peak_gap: float | None = None


@dataclass(frozen=True)
class EngineConfig:
    """How a run is computed. Its result is the same but for rounding, whatever stands here.

    Args:
        precision: "float32"; "bfloat16", by autocast, with weights and optimizer in float32; "float64"; "auto" is
            bfloat16 where the hardware multiplies it and the model is wide enough (256 on a CPU) to gain by it.
        accumulate: each rank's share of a batch is taken in so many pieces, for less memory.
        compile: hand the model to `torch.compile`.
        parallel: what `torchrun` spreads a run by: "ddp" copies the model, "fsdp" cuts it (FSDP2).
        device: "auto" is a GPU where there is one.
        keep_checkpoints: the newest so many stay.
        eval_every: steps between evaluations along the way; 0 is at the end alone.
        wandb: a project of Weights & Biases to log to as well; it needs the package `wandb`.
    """

    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    accumulate: int = 1
    compile: bool = False
    parallel: Literal["ddp", "fsdp"] = "ddp"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    keep_checkpoints: int = 2
    eval_every: int = 0
    wandb: str | None = None


@dataclass(frozen=True)
class RunConfig:
    """All that decides one run's numbers.

    Args:
        model: the network.
        data: the text.
        optimizer: the optimizer.
        schedule: the learning-rate schedule.
        steps: optimizer updates in the whole run.
        batch_size: sequences, or images, in a batch; under `torchrun`, of all ranks together.
        seed: of the initial weights and of the batches.
        clip: the gradient's norm is clipped to this before each update; 0 is no clipping.
        eval_batches: fixed validation batches, the same for every run.
        checkpoint_every: steps between checkpoints.
        engine: how it is computed.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    steps: int = 400
    batch_size: int = 16
    seed: int = 0
    clip: float = 0.5
    eval_batches: int = 64
    checkpoint_every: int = 100
    engine: EngineConfig = field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        model, schedule, engine = self.model, self.schedule, self.engine
        require(
            model.heads > 0 and model.width % (2 * model.heads) == 0,
            f"width must be a multiple of 2·heads (rotary pairs), got width {model.width}, heads {model.heads}",
        )
        require(
            256 < model.vocab_size <= 65536,
            f"vocab_size must be from 257 (bytes and an end mark) to 65536, got {model.vocab_size}",
        )
        for name in ("layers", "ff", "seq_len"):
            require(getattr(model, name) > 0, f"{name} must be at least 1, got {getattr(model, name)}")
        for name in ("steps", "batch_size", "eval_batches", "checkpoint_every"):
            require(getattr(self, name) > 0, f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("accumulate", "keep_checkpoints"):
            require(getattr(engine, name) > 0, f"engine.{name} must be at least 1, got {getattr(engine, name)}")
        require(
            self.batch_size % engine.accumulate == 0,
            f"batch_size must be a multiple of engine.accumulate, got {self.batch_size} and {engine.accumulate}",
        )
        require(engine.eval_every >= 0, f"engine.eval_every must not be negative, got {engine.eval_every}")
        require(self.seed >= 0, f"seed must not be negative, got {self.seed}")
        require(0 <= self.clip < math.inf, f"clip must be finite and not negative, got {self.clip}")
        decay = self.optimizer.weight_decay
        require(0 <= decay < math.inf, f"weight_decay must not be negative, got {decay}")
        require(0 < model.init_scale < math.inf, f"init_scale must be positive and finite, got {model.init_scale}")
        require(self.data.max_bytes > 0, f"data.max_bytes must be at least 1, got {self.data.max_bytes}")
        require(self.data.workers >= 0, f"data.workers must not be negative, got {self.data.workers}")
        require(0 < self.optimizer.lr < math.inf, f"lr must be positive and finite, got {self.optimizer.lr}")
        div, target, gap = schedule.div, schedule.target_loss, schedule.peak_gap
        require(div is None or 1 < div < math.inf, f"schedule: div must be above 1 and finite, got {div}")
        require(target is None or math.isfinite(target), f"schedule: target_loss must be finite, got {target}")
        for name, value in (("sigma_f2", schedule.sigma_f2), ("peak_gap", gap)):
            finite = value is None or 0 < value < math.inf
            require(finite, f"schedule: {name} must be positive and finite, got {value}")
        if schedule.kind == "linear":
            require(
                schedule.warmup_steps is not None and 1 <= schedule.warmup_steps < self.steps,
                f"a linear schedule needs warmup_steps from 1 to steps − 1 = {self.steps - 1}, "
                f"got {schedule.warmup_steps}",
            )
        else:
            require(
                schedule.warmup_steps is None,
                f"schedule.warmup_steps belongs to kind linear; kind {schedule.kind} has none to set",
            )
        if schedule.kind == "paper":
            require(schedule.target_loss is not None, "the paper's Algorithm 1 needs schedule.target_loss, its f*")

    @property
    def label(self) -> str:
        """The run in a few words, for folders and displays."""
        kind = self.schedule.kind if self.schedule.warmup_steps is None else f"linear{self.schedule.warmup_steps}"
        return f"{self.optimizer.name}-lr{self.optimizer.lr:g}-{kind}-seed{self.seed}"


@dataclass(frozen=True)
class CompareConfig:
    """Adaptive against a grid of hand-set warm-ups.

    Args:
        run: what all runs share; its optimizer's name and rate, its schedule's kind and its seed are filled in.
        rates: the peak rates of each optimizer. Each (optimizer, rate) is compared for itself.
        options: further keyword arguments of single optimizers, for example {lion: {betas: [0.9, 0.95]}}.
        schedules: which kinds to run.
        warmups: the hand-set lengths: below 1 a share of the steps, otherwise steps.
        paper_target_loss: f* for the paper's Algorithm 1.
        seeds: every run is made once with each.
        out: folder of the results.
        workers: processes side by side, each with one thread; null is one per core.
    """

    run: RunConfig = field(default_factory=RunConfig)
    rates: dict[OptimizerName, list[float]] = field(
        default_factory=lambda: {"muon": [3e-3], "lion": [1e-3], "normsgd": [3e-2]}
    )
    options: dict[OptimizerName, dict[str, Any]] = field(default_factory=dict)
    schedules: list[ScheduleName] = field(default_factory=lambda: ["adaptive", "paper", "linear"])
    warmups: list[float] = field(default_factory=lambda: [1, 0.05, 0.1, 0.2, 0.4])
    paper_target_loss: float = 3.0
    seeds: list[int] = field(default_factory=lambda: [0, 1])
    out: str = "runs/compare"
    workers: int | None = None

    def __post_init__(self) -> None:
        for name in ("rates", "schedules", "seeds"):
            require(len(getattr(self, name)) > 0, f"{name} must not be empty")
        for key, names in (("rates", self.rates), ("options", self.options)):
            for name in names:
                require(name in OPTIMIZERS, f"{key}: unknown optimizer {name!r}; {nearest(name, OPTIMIZERS)}")
        require("linear" not in self.schedules or len(self.warmups) > 0, "warmups must not be empty")
        require(all(w >= 0 for w in self.warmups), f"warmups must not be negative, got {self.warmups}")
        require(self.workers is None or self.workers > 0, f"workers must be at least 1, got {self.workers}")

    def runs(self) -> list[RunConfig]:
        """Every run, seed by seed, so that an interrupted comparison has whole seeds first."""
        runs = []
        for seed in self.seeds:
            for name, rates in self.rates.items():
                options = self.run.optimizer.options | self.options.get(name, {})
                for lr in rates:
                    optimizer = dataclasses.replace(self.run.optimizer, name=name, lr=lr, options=options)
                    runs += [
                        dataclasses.replace(self.run, optimizer=optimizer, schedule=schedule, seed=seed)
                        for schedule in self._schedules()
                    ]
        return list({run.label: run for run in runs}.values())  # two shares may round to the same step

    def _schedules(self) -> Iterable[ScheduleConfig]:
        base = dataclasses.replace(self.run.schedule, warmup_steps=None)
        for kind in self.schedules:
            if kind == "adaptive":
                yield dataclasses.replace(base, kind="adaptive")
            elif kind == "paper":
                yield dataclasses.replace(base, kind="paper", target_loss=self.paper_target_loss)
            else:
                for warmup in self.warmups:
                    steps = round(warmup * self.run.steps) if warmup < 1 else round(warmup)
                    yield dataclasses.replace(base, kind="linear", warmup_steps=steps)


@dataclass(frozen=True)
class SmoothnessConfig:
    """Curvature over the gap along one run of each optimizer (paper, Table "assumption_hyperparams").

    Args:
        run: what all runs share; its schedule must be linear. Optimizer and steps are filled in.
        rates: the peak rate of each optimizer; these optimizers are run.
        steps: updates of each optimizer's run; where one is missing, `run.steps`.
        options: further keyword arguments of each optimizer's `from_model`.
        windows: steps [first, last) of each optimizer's windowed fit; where one is missing, the steps after warm-up.
        every: every n-th step is measured.
        target_loss: f*.
        out: folder of the points, the fits and the figures.
    """

    run: RunConfig = field(default_factory=RunConfig)
    rates: dict[OptimizerName, float] = field(default_factory=lambda: {"lion": 1e-3, "muon": 3e-3, "normsgd": 3e-2})
    steps: dict[OptimizerName, int] = field(default_factory=dict)
    options: dict[OptimizerName, dict[str, Any]] = field(default_factory=dict)
    windows: dict[OptimizerName, list[int]] = field(default_factory=dict)
    every: int = 1
    target_loss: float = 0.0
    out: str = "runs/smoothness"

    def __post_init__(self) -> None:
        require(len(self.rates) > 0, "rates must not be empty")
        require(self.every > 0, f"every must be at least 1, got {self.every}")
        require(self.run.schedule.kind == "linear", f"the schedule must be linear, got {self.run.schedule.kind}")
        for key in ("rates", "steps", "options", "windows"):
            for name in getattr(self, key):
                require(name in OPTIMIZERS, f"{key}: unknown optimizer {name!r}; {nearest(name, OPTIMIZERS)}")
        for name, window in self.windows.items():
            require(len(window) == 2 and window[0] < window[1],
                    f"windows.{name} must be two steps, [first, last), got {window}")  # fmt: skip

    def run_of(self, name: OptimizerName) -> RunConfig:
        """The run of one optimizer."""
        if name not in self.rates:
            raise LabError(f"rates has no {name}; {nearest(name, self.rates)}")
        options = {**self.run.optimizer.options, **self.options.get(name, {})}
        optimizer = dataclasses.replace(self.run.optimizer, name=name, lr=self.rates[name], options=options)
        return dataclasses.replace(self.run, optimizer=optimizer, steps=self.steps.get(name, self.run.steps))

    def window_of(self, name: OptimizerName) -> tuple[int, int]:
        """Steps [first, last) of the windowed fit."""
        first, last = self.windows.get(name, [self.run.schedule.warmup_steps or 0, self.run_of(name).steps])
        return first, last


def require(condition: bool, message: str) -> None:
    """Raises ValueError unless the condition holds."""
    if not condition:
        raise ValueError(message)


def nearest(name: str, choices: Iterable[str]) -> str:
    """Words that point from an unknown name to the likeliest known one."""
    choices = sorted(choices)
    if close := difflib.get_close_matches(name, choices, n=1, cutoff=0.5):
        return f"did you mean {close[0]!r}?"
    return f"known are {', '.join(choices)}"


def known_keys(config_class: type) -> set[str]:
    """The dotted path of every key a config class understands."""
    keys = set()
    for item in dataclasses.fields(config_class):
        keys.add(item.name)
        if isinstance(item.type, type) and dataclasses.is_dataclass(item.type):
            keys |= {f"{item.name}.{key}" for key in known_keys(item.type)}
    return keys


def check_keys(given: Mapping[str, Any], config_class: type, source: str) -> None:
    """Refuses a key that the config class does not know, with the nearest that it does."""

    def visit(values: Mapping[str, Any], inner: type, prefix: str) -> None:
        fields = {item.name: item.type for item in dataclasses.fields(inner)}
        for key, value in values.items():
            if key not in fields:
                choices = {prefix + name for name in fields} | known_keys(config_class)
                raise LabError(f"{source}: unknown key {prefix + str(key)!r}; {nearest(prefix + str(key), choices)}")
            kind = fields[key]
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                if not isinstance(value, Mapping):
                    raise LabError(f"{source}: {prefix + key!r} must hold keys and values, got {value!r}")
                visit(value, kind, f"{prefix}{key}.")

    visit(given, config_class, "")


def read_yaml(name: str, extending: tuple[Path, ...] = ()) -> tuple[dict[str, Any], Path]:
    """A config file by its path, or a preset by its name; under what it `extends`, if it says so."""
    path = Path(name)
    if not path.is_file():
        presets = {preset.relative_to(PRESETS).with_suffix("").as_posix(): preset for preset in PRESETS.rglob("*.yaml")}
        if name not in presets:
            raise LabError(f"--config {name}: no such file and no such preset; {nearest(name, presets)}")
        path = presets[name]
    require(path not in extending, f"{path} extends itself")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise LabError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values or {}, dict):
        raise LabError(f"{path}: expected keys and values, got {type(values).__name__}")
    values = values or {}
    values.pop("lists", None)  # where a file keeps what its own anchors name
    if parent := values.pop("extends", None):
        values = merged(read_yaml(parent, (*extending, path))[0], values)
    return values, path


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested mappings in one; where they meet, `over` counts."""
    both = {key: merged(under[key], value) if isinstance(value, Mapping) and isinstance(under.get(key), Mapping)
            else value for key, value in over.items()}  # fmt: skip
    return {**under, **both}


@cache
def code_fingerprint() -> str:
    """Hash of the code that decides a run's numbers, so that an edit of the library never passes off old results."""
    package = Path(__file__).parent.parent
    lab = package / "lab"
    sources = [path for path in sorted(package.rglob("*.py")) if lab not in path.parents]
    sources += [lab / f"{name}.py" for name in ("models", "optimizers", "parallel", "peers", "tasks", "train")]
    sources += [lab / "data" / f"{name}.py" for name in ("batches", "images", "shards", "text")]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def identity(run: RunConfig, corpus_sha256: str) -> dict[str, Any]:
    """Everything a run's numbers follow from. Two runs of one identity are the same run."""
    return {
        "config": dataclasses.asdict(run),
        "corpus": corpus_sha256,
        "code": code_fingerprint(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def run_id(who: Mapping[str, Any]) -> str:
    """A short hash of an identity."""
    canonical = json.dumps(who, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """`key: old → new` for every key in which two nested mappings differ."""
    found = []
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key}: {a} → {b}")
    return found
