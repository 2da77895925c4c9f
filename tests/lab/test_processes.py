"""New processes: how many there is room for, and signals to real ones, alone and under `torchrun`."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autowarm.lab.config import RunConfig
from autowarm.lab.config.build import parse
from autowarm.lab.processes import Interrupted, Stop, room
from autowarm.lab.training.loop import train
from autowarm.lab.training.metrics import read_metrics

from .helpers import MODEL, PATIENCE


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({}, 16),  # no container: the cores
        ({"": "250000 100000"}, 2),
        ({"": "50000 100000"}, 1),  # never none
        ({"": "no number"}, 16),
        ({"pod": "400000 100000", "pod/us": "max 100000"}, 4),  # the group around ours
        ({"pod/others": "100000 100000", "pod/us": "max 100000"}, 16),
    ],
)
def test_workers_are_bounded_by_cores_and_quotas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    (own := tmp_path / "own").write_text(f"1:cpu:/v1\n0::/{list(groups)[-1] if groups else ''}\n")
    for name, quota in groups.items():
        (tmp_path / "groups" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name / "cpu.max").write_text(quota + "\n")
    assert room(tmp_path / "groups", own) == expected


SMALL = [word for key, value in MODEL.items() for word in (f"--model.{key}", str(value))]
SMALL += ["--batch_size", "4", "--eval_batches", "1", "--checkpoint_every", "100000", "--steps", "100000"]
SMALL += ["--schedule.kind", "linear", "--schedule.warmup_steps", "5"]


def test_a_signal_waits_for_the_loop_and_for_nothing_else() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Stop() as stop, stop.gently():
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked == signal.SIGTERM
    with Stop(), pytest.raises(Interrupted) as caught:
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_is_acknowledged_at_once_and_by_one_rank(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def message() -> str:
        with Stop() as stop, stop.gently():
            signal.raise_signal(signal.SIGINT)
            return capfd.readouterr().err.strip()

    assert message() == "stopping at the next step; Ctrl-C again stops at once"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    for rank in (1, 0):
        monkeypatch.setenv("RANK", str(rank))
        assert (message() == "") == (rank == 1)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_anywhere_but_under_torchrun(
    first: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    for outer in (False, True):  # as when a comparison's workers are stopped
        with contextlib.ExitStack() as within:
            if outer:
                within.enter_context(Stop())
            stop = within.enter_context(Stop())
            within.enter_context(stop.gently())
            signal.raise_signal(first)
            with pytest.raises(Interrupted if outer else KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")  # torchrun passes a terminal's Ctrl-C on once more
    with Stop() as stop, stop.gently():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


@pytest.mark.long
def test_a_signal_to_torchrun_stops_all_ranks_and_one_process_goes_on(corpus_folder: Path, tmp_path: Path) -> None:
    words = [*SMALL, "--data.corpus", str(corpus_folder), "--engine.parallel", "fsdp"]
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "autowarm"]
    with subprocess.Popen(
        [*program, "train", *words, "--out", str(tmp_path)], env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert any(line.startswith("update 1/") for line in process.stdout)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert "the same command continues from here" in errors
    assert process.returncode == 1  # torchrun's own
    (checkpoint,) = tmp_path.glob("checkpoint-*")
    step, steps = int(checkpoint.name.split("-")[1]), []
    with pytest.raises(Interrupted):
        train(parse(words, RunConfig, "train", ""), tmp_path, lambda one: steps.append(one.step) or len(steps) == 3)
    assert steps == [step + 1, step + 2, step + 3]
    assert [row["step"] for row in read_metrics(tmp_path)] == list(range(1, step + 4))
