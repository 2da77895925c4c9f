"""`autowarm find-rate`: a peak rate by a range test, on the lab's runs or the user's own task."""

import dataclasses
import math
import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import FindRateConfig, RunConfig
from ..config.build import parse, take_task
from ..errors import as_usage_error
from ..files import claim

if TYPE_CHECKING:
    from autowarm.rate import RateSearch

    from ..tasks import Source

_SHOWN = ("optimizer", "lowest", "highest", "steps", "out", "run.steps", "run.seed", "run.batch_size", "run.clip",
          "run.optimizer.weight_decay", "run.model.layers", "run.model.width", "run.data.corpus")  # fmt: skip


def run(argv: list[str]) -> int:
    """Print the suggestion, its interval and the curve; return 1 if the losses allow no suggestion."""
    about = "Suggest a peak rate by a range test of about a hundred updates."
    place, argv = take_task(argv, "run.task")
    also = {"--task": "your own task, FILE.py:NAME, or one of the lab's small tasks, such as mlp"}
    task, own, usual = None, None, {}
    if place is not None:
        from ..tasks.own import bring, defaults, load

        task = load(place)
        known = defaults(task)
        named = (names for names in (known["rates"], getattr(task, "optimizers", None)) if isinstance(names, Mapping))
        usual = {"run": known["run"], "optimizer": next(chain(*named), FindRateConfig.optimizer)}
    config = parse(argv, FindRateConfig, "find-rate", about, defaults=usual, shown=_SHOWN, also=also,
                   instead={"run.optimizer.name": "optimizer", "run.optimizer.lr": "lowest"})  # fmt: skip
    if task is not None:
        config, own = bring(task, config, Path(config.out), [config.optimizer], "optimizer")

    _run_of(config)  # what is wrong is refused before a folder is made
    claim(Path(config.out))
    found = search(config, own)
    if os.environ.get("RANK", "0") == "0":  # under torchrun the first rank speaks for all
        show(found, config)
    return 0 if found.reason is None else 1


def show(found: "RateSearch", config: FindRateConfig) -> None:
    """Print the suggestion and its interval, or the reason why there is none; write and name the numbers and curve."""
    from autowarm.plotting import styled

    from ..analysis.figures import axes_of, save
    from ..files import write_json

    name, out, told = config.optimizer, Path(config.out) / "find-rate", found.reason is None
    if told:
        low, high = found.interval
        print(f"suggestion  {found.suggestion:.2g} for {name} and a run of {config.run.steps:,} updates")
        print(f"interval    {low:.2g} to {high:.2g}")
    else:
        print(f"no rate can be suggested: {found.reason}")
    print(f"{len(found.rates)} updates of {name}, rates from {found.rates[0]:.2g} to {found.rates[-1]:.2g}")
    write_json(out.with_suffix(".json"), {
        "suggestion": found.suggestion if told else None,
        "interval": list(found.interval) if told else None,
        "reason": found.reason,
        "rates": found.rates.tolist(),
        "losses": [loss if math.isfinite(loss) else None for loss in found.losses.tolist()],
    })  # fmt: skip

    @styled
    def curve() -> list[Path]:
        drawn, [axes] = axes_of()
        found.plot(ax=axes)
        return save(drawn, out)

    print(out.with_suffix(".json"), *curve(), sep="\n")


@as_usage_error()
def _run_of(config: FindRateConfig) -> RunConfig:
    optimizer = dataclasses.replace(config.run.optimizer, name=config.optimizer)
    return dataclasses.replace(config.run, optimizer=optimizer, steps=config.steps)  # a batch for each update


def search(config: FindRateConfig, own: "Source | None" = None) -> "RateSearch":
    """Search with the run's model, data, precision, accumulation and clipping, on one process or torchrun's ranks.

    ``own`` is the source of the task, if the run's config names none of the lab's.
    """
    from torch import Tensor, nn

    from autowarm.rate import find_rate

    from ..tasks import make_task
    from ..training.parallel import joined
    from ..training.setup import Setup

    run = _run_of(config)
    with joined(run.engine) as ranks:
        task = make_task(run, own)
        setup = Setup(task, ranks)
        batches = task.batches(0, setup.rows)

        def closure() -> Tensor:
            loss = setup.forward_backward(setup.pieces(next(batches)))
            if run.clip:
                nn.utils.clip_grad_norm_(setup.model.parameters(), run.clip)
            return loss

        return find_rate(
            setup.net, setup.optimizer, closure, lowest=config.lowest, highest=config.highest, steps=config.steps,
            process_group=ranks.group, total_steps=config.run.steps,
        )  # fmt: skip
