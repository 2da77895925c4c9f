"""`autowarm smoothness`: curvature over the gap along a run of each optimizer, on the lab's tasks or your own."""

from typing import Any

from ..config import CompareConfig, LabError, SweepConfig
from ..config.build import parse
from .compare import asked
from .report import complain, show

# Of a task, which brings no sweep of its own: a run of each optimizer, whose warm-up is a tenth of it.
_OF_A_TASK: dict[str, Any] = {"schedules": ["linear"], "warmups": [0.1], "seeds": [0], "run.engine.curvature_every": 1}


def run(argv: list[str]) -> int:
    about = "Measure curvature over the gap along a run of each optimizer, on a sweep's runs or, with --task, a task's."
    config: CompareConfig | SweepConfig
    out = {"out": "runs/smoothness"}
    if {word.partition("=")[0] for word in argv} & {"--task", "--run.task"}:
        config, own = asked(argv, "smoothness", about, usual=_OF_A_TASK | out)
    else:
        also = {"--task": "a small task of the lab, or your own, FILE.py:NAME; then options are those of compare"}
        config = parse(argv, SweepConfig, "smoothness", about, preset="tiny/smoothness", also=also, defaults=out)
        own = None
    points = config.points()

    from autowarm._torch.plotting import styled

    from ..execution.engine import make_report
    from ..files import write_atomically
    from ..paper import gallery
    from ..paper.smoothness import measured, report

    results = show(*make_report(config, points, own))
    texts, drawn, wrong = [], [], []
    for name, curve in measured(results).items():
        try:
            texts.append(report(curve))
            drawn += gallery.save(f"smoothness-{name}", styled(gallery.curvature)(curve), results.folder)
        except LabError as error:
            wrong.append(str(error))
    text = "\n".join(texts)
    write_atomically(results.folder / "smoothness.md", text)
    print(text, *drawn, sep="\n")
    if wrong or not texts:
        raise LabError(f"no fit for {'; '.join(wrong) or 'any run: set engine.curvature_every'}")
    return complain(results.failed)
