"""Faults, many of them at random moments, and what survives: every run must end as the one that was left in peace.

python benchmarks/faults kill     SIGKILL at random moments of train, compare and sweep
python benchmarks/faults preempt  SIGTERM in every phase of train
python benchmarks/faults ranks    SIGTERM in every phase of two ranks, and SIGKILL of one of them, under torchrun
python benchmarks/faults soak     a long run of the scheduler: memory, time of a step, saved against live state
python benchmarks/faults table    the table of docs/reliability.md

Each mode ends soon after --seconds, or with --tries, and writes its counts to benchmarks/faults/MODE.json. A fault is
survived if the next start goes on behind the newest checkpoint and the run ends with the bits of one that was never
disturbed: losses, rates, weights, results. Everything else is lost.

A command runs in a fork of this process, which has imported everything: so there is time for many. Its jobs run in the
fork too, and not in workers; that workers die with their parent is held by tests/lab/execution/test_pool.py.
"""

import argparse
import itertools
import json
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bed import Bed, Child, behind, outcome, watch_phases

from autowarm.lab.analysis.markdown import comma_separated

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent
TABLE, KEYS = ROOT / "docs" / "data" / "tables" / "faults.csv", ("tried", "survived", "lost")
OF_RANKS = ["data preparation", "a step", "saving a checkpoint", "evaluation", "saving weights"]
PATIENCE = 600.0  # seconds after which a job that a fault should have ended counts as hanging


class Counts:
    """Faults tried, survived and lost, by where they struck."""

    def __init__(self, mode: str) -> None:
        self.mode, self.rows, self.losses = mode, {}, []  # type: ignore[var-annotated]
        self.began = time.monotonic()

    def add(self, where: str, lost: str | None) -> None:
        row = self.rows.setdefault(where, {"tried": 0, "survived": 0, "lost": 0})
        row["tried"] += 1
        row["lost" if lost else "survived"] += 1
        if lost:
            self.losses.append(f"{where}: {lost}")
            print(f"LOST {where}: {lost}", flush=True)

    @property
    def tried(self) -> int:
        return sum(row["tried"] for row in self.rows.values())

    def write(self, folder: Path, **more: Any) -> int:
        import torch

        found = {"mode": self.mode, "torch": torch.__version__, "seconds": round(time.monotonic() - self.began),
                 "faults": self.rows, "losses": self.losses, **more}  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.mode}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(show([found]))
        return 1 if self.losses else 0


def strike(mode: str, options: argparse.Namespace) -> int:
    """Lives of one folder each, with a few faults in them; the last start of each is left in peace."""
    number = signal.SIGKILL if mode == "kill" else signal.SIGTERM
    commands = ["train", "compare", "sweep"] if mode == "kill" else ["train"]
    draw, counts = random.Random(options.seed), Counts(mode)
    with tempfile.TemporaryDirectory() as name:
        bed = Bed(Path(name))
        bed.warm_up()
        until = time.monotonic() + options.seconds
        straight: dict[str, Any] = {}
        lengths: dict[str, list[tuple[str, float]]] = {}
        life = 0
        while counts.tried < options.tries and (time.monotonic() < until or not counts.tried):
            command = commands[life % len(commands)]
            life += 1
            if command not in straight:
                shutil.rmtree(bed.cache, ignore_errors=True)
                child = Child(bed.words(command, bed.folder / f"straight-{command}" / "run"), bed.folder / "log")
                assert child.end() == 0, child.log.read_text()
                straight[command] = outcome(bed.folder / f"straight-{command}")
                lengths[command] = child.phases
            out = bed.folder / f"life{life}"
            faults = list(live(bed, command, out, number, draw, lengths[command], until, options.tries - counts.tried))
            child = Child(bed.words(command, out / "run"), out.with_suffix(".log"))
            lost = None
            if status := child.end():
                lost = f"the last start ended with {status}: {child.log.read_text()[-300:]}"
            elif outcome(out) != straight[command]:
                lost = "it ended with other bits"
            for where, wrong in faults:
                counts.add(where, wrong or lost)
            shutil.rmtree(out)
    return counts.write(options.out)


def live(
    bed: Bed, command: str, out: Path, number: int, draw: random.Random, lengths: list[tuple[str, float]],
    until: float, tries: int,
) -> Iterator[tuple[str, str | None]]:  # fmt: skip
    """Starts a command again and again in one folder, each time with a fault; where each struck, and what it cost."""
    places: dict[str, list[int]] = {}
    for place, (phase, _) in enumerate(lengths):
        places.setdefault(phase, []).append(place)
    # In the order of time, so that what is to be struck is still to come.
    drawn = sorted(draw.choice(places[draw.choice(sorted(places))]) for _ in range(min(8, tries)))
    struck = 0
    for place in drawn:
        if time.monotonic() > until and struck:
            return
        target = lengths[place][0]
        if target == "data preparation":
            shutil.rmtree(bed.cache, ignore_errors=True)
        newest = behind(out)
        child = Child(bed.words(command, out / "run"), out.with_suffix(".log"))
        if child.listen(target, draw.randrange(3) if target == "a step" else 0):
            spans = [after - at for (phase, at), (_, after) in itertools.pairwise(lengths) if phase == target]
            time.sleep(draw.uniform(0, 2 * statistics.fmean(spans or [0.05])))
        status = child.end(number)
        if status == 0:
            continue  # it was quicker
        struck, wrong = struck + 1, None
        if status != (-9 if number == signal.SIGKILL else 128 + number):
            wrong = f"status {status}: {child.log.read_text()[-300:]}"
        for run, step in child.first.items():
            if step != newest.get(run, 0):
                wrong = f"{run} went on from step {step}, its newest checkpoint was of step {newest.get(run, 0)}"
        # A signal that is obeyed is followed by more phases, a kill by none.
        yield f"{command}: {child.phases[-1][0] if number == signal.SIGKILL else target}", wrong


def launched(bed: Bed, out: Path, news: Path) -> "subprocess.Popen[str]":
    """The command on two ranks, which tell their phases and process ids in a file each."""
    words = [*bed.words("train", out / "run"), "--engine.parallel", "ddp"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FAULTS_NEWS": str(news), "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen([sys.executable, *launcher, __file__, "rank", *words], env=environment, text=True,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # fmt: skip


def be_a_rank(words: list[str]) -> int:
    """What torchrun starts."""
    from autowarm.lab.commands import main

    with open(f"{os.environ['FAULTS_NEWS']}{os.environ['RANK']}", "a", buffering=1) as news:
        news.write(f"pid {os.getpid()}\n")
        watch_phases(lambda phase, *_: print(phase, file=news))
        return main(words)


def ranks(options: argparse.Namespace) -> int:
    """Each fault once, then again from the first, in one folder until it is through."""
    draw, counts = random.Random(options.seed), Counts("ranks")
    until = time.monotonic() + options.seconds
    faults = [("SIGKILL of one rank", "a step"), *(("SIGTERM", phase) for phase in OF_RANKS)]
    with tempfile.TemporaryDirectory() as name:
        bed = Bed(Path(name))
        process = launched(bed, bed.folder / "straight", bed.folder / "news-straight-")
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        straight = outcome(bed.folder / "straight")
        for index in range(options.tries):
            what, phase = faults[index % len(faults)]
            if time.monotonic() > until:
                break
            if phase == "data preparation":
                shutil.rmtree(bed.cache, ignore_errors=True)
            out, news = bed.folder / f"life{index}", bed.folder / f"news{index}-"
            process = launched(bed, out, news)
            first = Path(f"{news}0")
            skip = draw.randrange(1, 8) if phase == "a step" else 1
            while process.poll() is None and not (first.exists() and first.read_text().count(phase) >= skip):
                time.sleep(0.002)
            began = time.monotonic()
            if what == "SIGTERM":
                process.send_signal(signal.SIGTERM)
            else:
                victim = Path(f"{news}{draw.randrange(2)}").read_text().split()[1]
                os.kill(int(victim), signal.SIGKILL)
            lost = None
            try:
                _, errors = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                lost, errors = f"it hung for {PATIENCE:.0f} seconds", ""
            stopped = time.monotonic() - began
            if not lost and process.returncode not in (0, 1):
                lost = f"status {process.returncode}"
            if not lost and what != "SIGTERM" and "SIGKILL" not in errors:
                lost = f"no word of the killed rank: {errors[-300:]}"
            if not lost:
                again = launched(bed, out, bed.folder / f"again{index}-")
                _, errors = again.communicate()
                if again.returncode:
                    lost = f"the next start ended with {again.returncode}: {errors[-300:]}"
                elif outcome(out) != straight:
                    lost = "it ended with other bits"
            print(f"{what} in {phase}: stopped after {stopped:.1f} s", flush=True)
            counts.add(f"2 ranks, {what}: {phase}", lost)
    return counts.write(options.out)


def soak(options: argparse.Namespace) -> int:
    """Two schedulers in step, one of which is saved, thrown away and loaded again, block by block."""
    import torch

    from autowarm import AdaptiveWarmup

    total, blocks = options.steps, 20
    counts, draw = Counts("soak"), random.Random(options.seed)
    until = time.monotonic() + options.seconds

    def make() -> AdaptiveWarmup:
        p = torch.nn.Parameter(torch.zeros(2, 2))
        p.grad = torch.zeros(2, 2)
        return AdaptiveWarmup(torch.optim.SGD([p], lr=0.1), total, calibration="frobenius")

    live, twin = make(), make()
    memory, microseconds, done = [], [], 0
    for _ in range(blocks):
        began = time.perf_counter()
        for _ in range(total // blocks):
            done += 1
            loss = float("nan") if draw.random() < 0.001 else 1 + 9 * 0.9997**done + draw.gauss(0, 0.3)
            for scheduler in (live, twin):
                scheduler.optimizer.step()
                scheduler.step(loss)
        microseconds.append(round(1e6 * (time.perf_counter() - began) / (total // blocks) / 2, 1))
        memory.append(resource_now())
        same = repr(live.state_dict()) == repr(twin.state_dict())
        state, twin = twin.state_dict(), make()
        twin.load_state_dict(state)
        counts.add("saved and loaded in a long run", None if same else f"drift by step {done}")
        if time.monotonic() > until:
            break
    grown = memory[-1] - memory[0]
    counts.add("memory of a long run", None if grown < 4096 else f"it grew by {grown} KiB")
    return counts.write(options.out, steps=done, kib=memory, microseconds_a_step=microseconds, phase=live.phase)


def resource_now() -> int:
    """Memory in use, in KiB."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() // 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def show(found: list[dict[str, Any]]) -> str:
    """The table as CSV: faults tried, survived and lost, by where they struck."""
    names = {"kill": "SIGKILL, ", "preempt": "SIGTERM, "}
    faults = [(each["mode"], where, row) for each in found for where, row in sorted(each["faults"].items())]
    lines = [[f"{names.get(mode, '')}{where}", *(str(row[key]) for key in KEYS)] for mode, where, row in faults]
    total = ["**all**", *(f"**{sum(row[key] for *_, row in faults)}**" for key in KEYS)]
    return comma_separated(["fault", *KEYS], [*lines, total])


def table() -> int:
    """Prints the table of all modes, and writes it for the page."""
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    TABLE.write_text(show(found), encoding="utf-8")
    print(show(found))
    return 1 if any(each["losses"] for each in found) else 0


def main() -> int:
    if sys.argv[1:2] == ["rank"]:
        return be_a_rank(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["kill", "preempt", "ranks", "soak", "table"])
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--tries", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=200_000, help="of the soak")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.mode in ("table", "soak", "ranks"):
        return table() if options.mode == "table" else (soak if options.mode == "soak" else ranks)(options)
    import torch

    torch.set_num_threads(1)
    return strike(options.mode, options)


if __name__ == "__main__":
    sys.exit(main())
