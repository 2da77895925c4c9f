"""Signals to real processes: `autowarm train`, alone and under `torchrun`."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autowarm.lab.training.stopping import Interrupted, Stop

MODEL = {"layers": 1, "width": 16, "heads": 2, "ff": 32, "vocab_size": 280, "seq_len": 8}
SMALL = [word for key, value in MODEL.items() for word in (f"--model.{key}", str(value))]
SMALL += ["--batch_size", "4", "--eval_batches", "1", "--checkpoint_every", "100000"]
SMALL += ["--schedule.kind", "linear", "--schedule.warmup_steps", "5"]


def test_a_signal_waits_for_the_loop_and_for_nothing_else() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Stop() as stop:
        with stop.gently():
            signal.raise_signal(signal.SIGTERM)
            assert stop.asked == signal.SIGTERM
        with pytest.raises(Interrupted) as caught:
            signal.raise_signal(signal.SIGTERM)
        assert caught.value.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_ctrl_c_ends_it_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with Stop() as stop, stop.gently():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")  # torchrun passes a terminal's Ctrl-C on once more
    with Stop() as stop, stop.gently():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("ranks", "number", "status"),
    [(1, signal.SIGTERM, 143), (1, signal.SIGINT, 130), (2, signal.SIGTERM, 1)],
    ids=["SIGTERM", "Ctrl-C", "torchrun"],
)
def test_a_signal_saves_and_the_next_call_goes_on(
    ranks: int, number: int, status: int, corpus_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    program = [sys.executable, "-m", "autowarm"]
    extra = []
    if ranks > 1:  # torchrun itself ends with 1
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
        program = [sys.executable, "-m", *launcher, "autowarm"]
        extra = ["--engine.parallel", "fsdp"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def command(steps: int) -> list[str]:
        words = ["train", *SMALL, *extra, "--steps", str(steps), "--data.corpus", str(corpus_folder), "--out", str(out)]
        return [*program, *words]

    process = subprocess.Popen(
        command(100_000), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("step 1/")
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == status
    assert "the same command goes on from here" in errors
    (checkpoint,) = out.glob("checkpoint-*")
    step = int(checkpoint.name.split("-")[1])
    assert step >= 1
    # The rest of so long a run is not waited for: the folder's config is made to end soon.
    config = (out / "config.yaml").read_text()
    (out / "config.yaml").write_text(config.replace("steps: 100000", f"steps: {step + 20}", 1))
    again = subprocess.run(command(step + 20), env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, step + 21))
