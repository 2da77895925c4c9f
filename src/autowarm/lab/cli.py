"""The `autowarm` command. Parsing imports neither torch nor transformers, so help is quick."""

import dataclasses
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from .config import PRESETS, CompareConfig, LabError, RunConfig, check_keys, known_keys, nearest, read_yaml

USAGE = """\
usage: autowarm COMMAND [options]

Learning-rate warm-up that sets itself, for norm-constrained optimizers.

commands:
  compare         adaptive against hand-set warm-ups: a table, figures, results.json and one HTML report
  train           one run, into a folder of its own
  report FOLDER   make the table, the figures and the report of a comparison again

`autowarm COMMAND --help` lists a command's options.
"""

_Config = TypeVar("_Config")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    argv = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[list[str]], int]] = {"compare": _compare, "train": _train, "report": _report}
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if argv else 2
    if argv[0] == "--version":
        from autowarm import __version__

        print(__version__)
        return 0
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
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
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        return 130


class UsageError(LabError):
    """The command line or a config file is wrong."""


def _compare(argv: list[str]) -> int:
    about = "Adaptive against a grid of hand-set warm-ups. Interrupted, the same command goes on where it stopped."
    config = parse(argv, CompareConfig, "compare", about, preset="demo")
    try:
        config.runs()
    except ValueError as error:
        raise UsageError(str(error)) from None

    from .compare import compare
    from .display import Display

    display = Display()
    with display:
        results, failed = compare(config, display)
        display.note("drawing figures")
        written = _present(Path(config.out), results)
    written()
    if failed:
        listed = "\n".join(f"  {label}: {message}" for label, message in failed.items())
        raise LabError(f"{len(failed)} runs failed (error.txt in their folders says where):\n{listed}")
    return 0


def _train(argv: list[str]) -> int:
    out, argv = _take(argv, "--out")
    about = "One run. Its folder (--out, default runs/LABEL) holds config, metrics, TensorBoard events and weights."
    config = parse(argv, RunConfig, "train", about, extra="  --out FOLDER          folder of the run\n")
    folder = Path(out or f"runs/{config.label}")

    stopped = False

    def stop(*_: Any) -> None:
        nonlocal stopped
        stopped = True  # the loop ends at the next step boundary, where a checkpoint is whole

    previous = signal.signal(signal.SIGINT, stop)
    try:
        from .train import Interrupted, Progress, train

        def on_step(progress: Progress) -> bool:
            if progress.step % 20 == 0 or progress.step == config.steps:
                print(f"step {progress.step}/{config.steps}  loss {progress.loss:.4f}  rate {progress.lr:.3e}  "
                      f"{progress.seconds / progress.step * 1e3:.0f} ms/step", flush=True)  # fmt: skip
            return stopped

        try:
            result = train(config, folder, on_step)
        except Interrupted:
            raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, previous)
    outcome = "diverged" if result["diverged"] else f"validation loss {result['val_loss']:.4f}"
    print(f"{outcome}, warm-up {result['warmup_steps']} steps, in {folder}")
    for text in result["warnings"]:
        print(f"warning: {text}", file=sys.stderr)
    return 0


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


def parse(
    argv: list[str], config_class: type[_Config], command: str, about: str, preset: str | None = None, extra: str = ""
) -> _Config:
    """A config from preset, `--config` and dotted overrides, in this order.

    Raises:
        UsageError: a key or a value is wrong; the message is one line and names the nearest key.
        SystemExit: help was asked for.
    """
    import jsonargparse

    name, argv = _take(argv, "--config")
    parser = jsonargparse.ArgumentParser(prog=f"autowarm {command}", description=about, exit_on_error=False)
    presets = ", ".join(sorted(path.stem for path in PRESETS.glob("*.yaml")))
    parser.add_argument("--config", metavar="NAME|PATH", help=f"a YAML file, or a preset: {presets}")
    parser.add_class_arguments(config_class)
    parser.epilog = extra or None
    source = ""
    try:
        if chosen := name or preset:
            values, path = read_yaml(chosen)
            source = str(path)
            check_keys(values, config_class, source)
            parser.parse_object(values)  # defaults are taken unchecked, so the file is checked on its own
            parser.set_defaults(_leaves(values, config_class))
        source = ""
        for word in argv:
            key = word.split("=")[0].removeprefix("--")
            if word.startswith("--") and key != "help" and not _known(key, config_class):
                raise LabError(f"unknown option --{key}; {nearest(key, known_keys(config_class))}")
        parsed = parser.parse_args(argv)
        parsed.pop("config", None)
        return config_class(**vars(parser.instantiate(parsed)))
    except (jsonargparse.ArgumentError, LabError, ValueError, TypeError) as error:
        text = _one_line(error)
        raise UsageError(text if text.startswith(source) else f"{source}: {text}") from None


def _take(argv: list[str], option: str) -> tuple[str | None, list[str]]:
    """The value of an option (the last, if it is given twice) and the words without it."""
    value, rest, words = None, [], iter(argv)
    for word in words:
        if word == option:
            value = next(words, None)
            if value is None:
                raise UsageError(f"{option} needs a value")
        elif word.startswith(option + "="):
            value = word.split("=", 1)[1]
        else:
            rest.append(word)
    return value, rest


def _leaves(values: dict[str, Any], config_class: type, prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted paths; a value that is a mapping itself, such as the rates, stays whole."""
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        kind = config_class.__annotations__[key]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            leaves |= _leaves(value, kind, f"{prefix}{key}.")
        else:
            leaves[prefix + key] = value
    return leaves


def _known(key: str, config_class: type) -> bool:
    """Whether an option names a key, or an entry of a key that is a mapping, such as --rates.muon."""
    known = known_keys(config_class)
    return key.rstrip("+") in known or key.rpartition(".")[0] in {
        "rates",
        "options",
        "optimizer.options",
        "run.optimizer.options",
    }


def _one_line(error: Exception) -> str:
    """A message without line breaks and without Python's spelling of types."""
    text = " ".join(str(error).split())
    return re.sub(r"<class '(\w+)'>", r"\1", text).replace("typing.", "").replace("Parser key", "key")
