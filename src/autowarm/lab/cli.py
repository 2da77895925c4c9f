"""The `autowarm` command. Parsing imports neither torch nor transformers, so help is quick."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .arguments import UsageError, parse, take, yaml_of
from .config import (
    CompareConfig,
    LabError,
    RunConfig,
    SmoothnessConfig,
    nearest,
)
from .grid import SweepConfig
from .stopping import Interrupted, Stop

USAGE = """\
usage: autowarm COMMAND [options]

Learning-rate warm-up that sets itself, for norm-constrained optimizers.

commands:
  compare         adaptive against hand-set warm-ups: a table, figures, results.json and one HTML report
  train           one run, into a folder of its own
  calibrate MODEL the schedule before any training: κ, Δ', the loss at the switch, and pictures
  sweep           the runs of a grid, each once, on this machine or a Ray cluster: results.json and a report
  smoothness      curvature over the gap along a run of each optimizer: points, fits, verdicts, figures
  figure NAME     one figure or table of the paper, or all; figure --list names them with what they cost
  report FOLDER   make the table, the figures and the report of a comparison or a sweep again
  data KIND       token shards: data fineweb, data folder PATH, data check FOLDER

`autowarm COMMAND --help` lists a command's options.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status.

    It is 0 when all is done, 1 after a failure, 2 for wrong input, and 130 (Ctrl-C) or 143 (SIGTERM) when the same
    command, given again, goes on from where it stopped.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[list[str]], int]] = {
        "compare": _compare, "train": _train, "calibrate": _calibrate, "sweep": _sweep, "smoothness": _smoothness,
        "figure": _figure, "report": _report, "data": _data,
    }  # fmt: skip
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if argv else 2
    if argv[0] == "--version":
        from autowarm import __version__

        print(__version__)
        return 0
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    if argv[0] != "data":
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        if argv[0] not in commands:
            raise UsageError(f"unknown command {argv[0]!r}; {nearest(argv[0], commands)}")
        return commands[argv[0]](argv[1:])
    except UsageError as error:
        print(f"autowarm: {error}", file=sys.stderr)
        return 2
    except LabError as error:
        print(f"autowarm: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"autowarm: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, Interrupted) as error:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        return 128 + getattr(error, "signal", signal.SIGINT)


def _compare(argv: list[str]) -> int:
    about = "Adaptive against a grid of hand-set warm-ups. Interrupted, the same command goes on where it stopped."
    config = parse(argv, CompareConfig, "compare", about, preset="demo")
    try:
        config.runs()
    except ValueError as error:
        raise UsageError(str(error)) from None

    from .sweep import compare

    return _make(compare, config)


def _sweep(argv: list[str]) -> int:
    about = "The runs of a grid, each made once. Interrupted, the same command goes on where it stopped."
    config = parse(argv, SweepConfig, "sweep", about)
    try:
        config.points()
    except LabError as error:
        raise UsageError(str(error)) from None

    from .sweep import sweep

    return _make(sweep, config)


def _make(make: Callable[[Any, Any], tuple[dict[str, Any], dict[str, str]]], config: Any) -> int:
    """Makes the runs of a comparison or a sweep and shows what came out."""
    from .display import Display

    display = Display()
    with Stop(), display:
        results, failed = make(config, display)
        display.note("drawing figures")
        written = _present(Path(config.out), results)
    written()
    _complain(failed)
    return 0


def _complain(failed: dict[str, str]) -> None:
    if failed:
        listed = "\n".join(f"  {label}: {message}" for label, message in failed.items())
        raise LabError(f"{len(failed)} runs failed (error.txt in their folders says where):\n{listed}")


def _train(argv: list[str]) -> int:
    out, argv = take(argv, "--out")
    about = "One run. Its folder (--out, default runs/LABEL) holds config, metrics, TensorBoard events and weights."
    config = parse(argv, RunConfig, "train", about, extra="  --out FOLDER          folder of the run\n")
    folder = Path(out or f"runs/{config.label}")

    with Stop() as stop:
        try:
            from .train import train

            result = train(config, folder, _step_line(config) if _first_rank() else None, stop=stop)
        except Interrupted as error:
            if _first_rank():
                print(f"\n{error}; the same command goes on from here", file=sys.stderr)
            return 128 + error.signal
    if not _first_rank():
        return 0
    outcome = "diverged" if result["diverged"] else f"validation loss {result['val_loss']:.4f}"
    outcome += "".join(f", {name} {value:.4f}" for name, value in result["metric"].items())
    print(f"{outcome}, warm-up {result['warmup_steps']} steps, in {folder}")
    for text in result["warnings"]:
        print(f"warning: {text}", file=sys.stderr)
    return 0


def _first_rank() -> bool:
    """Whether this process speaks for the run; under `torchrun` one of many does."""
    return os.environ.get("RANK", "0") == "0"


def _step_line(config: RunConfig) -> Callable[[Any], None]:
    """Prints loss, rate, time and speed since the line before, and on known GPUs how much of them is used."""
    from .models import flops_per_token
    from .parallel import peak_flops

    images, every = config.model.sees_images, max(1, min(20, config.steps // 10))
    per_step = config.batch_size * (1 if images else config.model.seq_len)
    peak = None if images else peak_flops()
    world = int(os.environ.get("WORLD_SIZE", 1))
    last: tuple[int, float] | None = None

    def on_step(progress: Any) -> None:
        nonlocal last
        if last is None or progress.step % every == 0 or progress.step == config.steps:
            before, last = last or (progress.step - 1, 0.0), (progress.step, progress.seconds)
            seconds = max(1e-9, (progress.seconds - before[1]) / (progress.step - before[0]))
            line = f"step {progress.step}/{config.steps}  loss {progress.loss:.4f}  rate {progress.lr:.3e}  "
            line += f"{seconds * 1e3:.0f} ms/step  {per_step / seconds:,.0f} {'images' if images else 'tokens'}/s"
            if peak is not None:
                line += f"  MFU {100 * flops_per_token(config.model) * per_step / seconds / (peak * world):.1f} %"
            print(line, flush=True)

    return on_step


def _data(argv: list[str]) -> int:
    usage = ("usage: autowarm data fineweb [options]         FineWeb's 10-billion-token sample to token shards\n"
             "       autowarm data folder PATH [options]     text or parquet files to token shards\n"
             "       autowarm data check FOLDER              shards against their checksums\n\n"
             "Interrupted, the same command goes on. Options: `autowarm data folder --help`.\n")  # fmt: skip
    kind, rest = (argv[0], argv[1:]) if argv else ("", [])
    if kind in ("", "-h", "--help"):
        print(usage, end="")
        return 0 if kind else 2
    if kind not in ("fineweb", "folder", "check"):
        raise UsageError(f"unknown kind of data {kind!r}; {nearest(kind, ['fineweb', 'folder', 'check'])}")

    from .data.tokenise import FINEWEB, SAMPLE, ShardsConfig, documents, fineweb, make_shards

    path = Path()
    if kind != "fineweb" and not (rest and rest[0] in ("-h", "--help")):
        if not rest or rest[0].startswith("-"):
            raise UsageError(f"data {kind} needs a folder: autowarm data {kind} PATH")
        path, rest = Path(rest[0]), rest[1:]
    if kind == "check":
        from .data.shards import check

        print(f"{check(path)} shards in {path} are whole")
        return 0
    config = parse(rest, ShardsConfig, f"data {kind}", "Token shards with a manifest: counts, checksums, tokenizer.")
    source, stream = (
        (f"{FINEWEB} {SAMPLE}", fineweb) if kind == "fineweb" else (str(path.resolve()), lambda: documents(path))
    )

    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=not sys.stderr.isatty()) as bar:
        shown = bar.add_task("tokenising", total=config.tokens)

        def report(tokens: int, count: int) -> None:
            bar.update(shown, completed=tokens, description=f"{tokens / 1e6:,.1f}M tokens, {count:,} documents")

        manifest = make_shards(config, source, stream, report)
    shards, folder = manifest["shards"], config.out
    print(f"{manifest['tokens']:,} tokens of {manifest['documents']:,} documents in {len(shards)} shards in {folder}")
    vocab_size = _padded(manifest["tokenizer"]["vocab_size"])
    print(f"train on them: autowarm train --data.corpus {folder} --model.vocab_size {vocab_size}")
    return 0


def _padded(vocab_size: int) -> int:
    """The next multiple of 128, which matrix products like."""
    return -(-vocab_size // 128) * 128


def _calibrate(argv: list[str]) -> int:
    from .calibrate import CalibrateConfig, present

    about = "The schedule before any training: κ, Δ', K0, K1, K2, the loss at the switch, and how they came about."
    if argv and not argv[0].startswith("-"):
        argv = ["--model", *argv]
    extra = "  MODEL                 first of all, the same as --model\n"
    for path in present(parse(argv, CalibrateConfig, "calibrate [MODEL]", about, extra=extra)):
        print(path)
    return 0


def _smoothness(argv: list[str]) -> int:
    about = (
        "Curvature over the gap along a run of each optimizer. Points that are in the folder are not measured again."
    )
    config = parse(argv, SmoothnessConfig, "smoothness", about, preset="smoothness-tiny")

    from .files import write_atomically
    from .gallery import Sources
    from .smoothness import measured, report

    folder = Path(config.out)
    runs = [measured(config, name, folder / f"smoothness-{name}.json", on_step=_counter(name)) for name in config.rates]
    write_atomically(folder / "smoothness.md", report(runs))
    print(report(runs), end="")
    for name in config.rates:
        _draw(f"smoothness-{name}", Sources(folder, config), folder)
    return 0


def _figure(argv: list[str]) -> int:
    about = (
        "One figure or table of the paper by its name, as PNG and SVG or Markdown; `all` makes every one. The runs it "
        "is made from are made first where they are missing, each once, whichever figures share them."
    )
    taken: dict[str, str | None] = {}
    for option in ("--figures", "--scale", "--out", "--override", "--seeds", "--engine", "--workers", "--address"):
        taken[option], argv = take(argv, option)
    if "--list" in argv:
        return _list_figures()
    names = argv[:1] if argv and not argv[0].startswith("-") else []
    extra = (
        "  NAME                  the figure, first of all, or all; --list names them with what they cost\n"
        "  --scale SCALE         tiny (the default: minutes on a CPU) or paper (needs GPUs and FineWeb)\n"
        "  --figures FOLDER      where it goes, default figures\n"
        "  --out FOLDER          where runs and measurements are kept, default runs/SCALE\n"
        "  --override MAPPING    keys that count over those of the sweeps, such as '{steps: 20}', for a quick look\n"
        "  --seeds LIST          in place of the sweeps' own\n"
        "  --engine, --workers, --address   as for autowarm sweep\n"
        "The other options are those of autowarm smoothness, for the figures of curvature."
    )
    scale = taken["--scale"] or "tiny"
    if scale not in ("tiny", "paper"):
        raise UsageError(f"--scale {scale}: give tiny or paper")
    config = parse(argv[len(names) :], SmoothnessConfig, "figure NAME", about, f"smoothness-{scale}", extra)
    if not names:
        raise UsageError("figure needs a name, or all; autowarm figure --list names them")

    from .display import Display
    from .experiments import GALLERY, known, produce
    from .gallery import Sources

    if names == ["all"]:
        names = [name for name, entry in GALLERY.items() if all(one in config.rates for one in entry.measures)]
    for name in names:
        try:
            known(name)
        except LabError as error:
            raise UsageError(str(error)) from None
    values = {option: yaml_of(option, taken[option]) for option in ("--override", "--seeds", "--workers")}
    engine = taken["--engine"] or "processes"
    if engine not in ("processes", "ray"):
        raise UsageError(f"--engine {engine}: give processes or ray")
    sources = Sources(Path(taken["--out"] or f"runs/{scale}"), config, scale=scale)
    display = Display()
    with Stop(), display:
        failed = produce(
            names, sources, display, override=values["--override"] or {}, seeds=values["--seeds"],
            engine="ray" if engine == "ray" else "processes",
            workers=values["--workers"], address=taken["--address"],
        )  # fmt: skip
        display.note("drawing figures")
    for name in names:
        _draw(name, sources, Path(taken["--figures"] or "figures"))
    _complain(failed)
    return 0


def _list_figures() -> int:
    from rich.console import Console
    from rich.table import Table

    from .experiments import listing

    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for heading in ("name", "of the paper", "tiny, CPU", "paper, GPU", "shows"):
        table.add_column(heading, no_wrap=heading == "name", justify="right" if "PU" in heading else "left")
    for row in listing():
        table.add_row(*row)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 180
    console.print(table)
    console.print("CPU: hours of one core, from measured runs. GPU: hours of one H200 at 40 % of its peak, by "
                  "arithmetic. Figures that share runs are each counted in full.")  # fmt: skip
    return 0


def _draw(name: str, sources: Any, out: Path) -> None:
    from .experiments import known
    from .figures import save
    from .files import write_atomically

    made = known(name).make(sources)
    if isinstance(made, str):
        write_atomically(out / f"{name}.md", made)
        print(out / f"{name}.md")
        return
    for path in save(made, out / name):
        print(path)


def _counter(name: str) -> Callable[[Any], None]:
    def on_step(progress: Any) -> None:
        if progress.step % 50 == 0:
            print(f"{name}: step {progress.step}  loss {progress.loss:.4f}", file=sys.stderr, flush=True)

    return on_step


def _report(argv: list[str]) -> int:
    if "-h" in argv or "--help" in argv:
        print("usage: autowarm report [FOLDER]\n\nMakes the table, the figures and the HTML report of a comparison\n"
              "again from its folder (default runs/compare).")  # fmt: skip
        return 0
    if len(argv) > 1 or any(word.startswith("-") for word in argv):
        raise UsageError(f"report takes one folder, got {' '.join(argv)}")
    folder = Path(argv[0] if argv else "runs/compare")

    from .results import read_results

    _present(folder, read_results(folder))()
    return 0


def _present(folder: Path, results: dict[str, Any]) -> Callable[[], None]:
    """Makes figures and page; returns what prints the table and the paths, for when the screen is free."""
    from rich.console import Console

    from . import report
    from .results import summarise, verdict

    files = report.make(folder, results)
    summaries = summarise(results["runs"])

    def show() -> None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = 160  # a pipe has no width; the default of 80 would break the numbers
        console.print(report.table(summaries))
        for summary in summaries:
            console.print(f"{summary.title}: {verdict(summary)}", markup=False)
        for path in (folder / "results.json", *files.figures, files.report):
            console.print(str(path), markup=False, soft_wrap=True)

    return show
