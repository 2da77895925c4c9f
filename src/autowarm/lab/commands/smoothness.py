"""`autowarm smoothness`: curvature over the gap along a run of each optimizer."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from ..config import LabError, SmoothnessConfig
from ..config.build import parse
from ..folders import claim

_SHOWN = ("rates", "steps", "options", "windows", "every", "target_loss", "out", "run.steps", "run.batch_size",
               "run.model.layers", "run.model.width")  # fmt: skip


def run(argv: list[str]) -> int:
    """Curvature over the gap along a run of each optimizer."""
    about = "Measure curvature over the gap along a run of each optimizer. Stored points are not measured again."
    config = parse(argv, SmoothnessConfig, "smoothness", about, preset="smoothness-tiny", shown=_SHOWN,
                   instead={"run.optimizer.name": "rates", "run.optimizer.lr": "rates",
                            "run.schedule.target_loss": "target_loss"})  # fmt: skip

    from autowarm.plotting import styled

    from ..files import write_atomically
    from ..paper.gallery import Sources, save
    from ..paper.gallery import smoothness as draw
    from ..paper.smoothness import measured, report

    folder = Path(config.out)
    claim(folder)
    texts, failed = {}, []
    for name in config.rates:
        found = measured(config, name, folder / f"smoothness-{name}.json", on_step=partial(_count, name))
        try:
            texts[name] = report(found)
        except LabError as error:
            failed.append(str(error))
    text = "\n".join(texts.values())
    write_atomically(folder / "smoothness.md", text)
    print(text, end="")
    for name in texts:
        for path in save(f"smoothness-{name}", styled(draw)(Sources(folder, config), name), folder):
            print(path)
    if failed:
        raise LabError(f"no fit for {'; '.join(failed)}. The points are in {folder}")
    return 0


def _count(name: str, progress: Any) -> None:
    if progress.step % 50 == 0:
        print(f"{name}: update {progress.step}  loss {progress.loss:.4f}", file=sys.stderr, flush=True)
