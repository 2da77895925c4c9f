# ruff: noqa: E501 (a line of a log is a line)
"""What programs print or write, each as (first update, last, losses, T, the rate at the last one, the last loss).

Every sample is made here, in the form that the program uses. `None` for a rate: the form has none. A text instead of
numbers is what the refusal says, where the form has too little in it.
"""

import json
import math
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autowarm.logs import LogError, replay
from autowarm.logs.formats import logs_in
from autowarm.logs.log import make_log

T = 600


def loss(step: int) -> float:
    return round(2.0 + 8.0 * math.exp(-step / 60), 4)


def rate(step: int) -> float:
    return float(f"{1e-3 * min(1.0, step / 100):.4g}")


STAMP = "2026-01-02 03:04:05,678"


def filled(form: str | Callable[..., str], update: int, s: int, e: int = 0) -> str:
    """A line of an update: its step s, loss x and rate r; a later loss, and counts of samples and of epochs."""
    names = {"s": s, "x": loss(update), "r": rate(update), "e": e}
    if callable(form):
        return form(**names)
    names |= {"more": names["x"] + 1, "n": 64 * s, "p": s / 200, "half": s // 2, "before": s - 1, "since": s - 9}
    return form.format(**names, row=s // 10 - 1, T=T, STAMP=STAMP, DAY=STAMP[:19])


def lines(form: str | Callable[..., str], steps: Iterable[int] = range(10, T + 1, 10)) -> str:
    return "".join(f"{filled(form, s, s)}\n" for s in steps)


def epochs(form: str | Callable[..., str], first: int = 0) -> str:
    """Three epochs of 200 updates whose steps begin again."""
    return "\n".join(filled(form, 200 * e + s, s, e + first) for e in range(3) for s in range(10, 201, 10))


EVERY = (10, T, 60, T, 1e-3, loss(T))
BARE = (10, T, 60, T, None, loss(T))
AGAIN = "the steps begin again in each epoch: pass steps that count the run's updates"

FORMATS: dict[str, tuple[str, Any]] = {
    "nanoGPT": ("step 0: train loss 10.9, val loss 10.8\n"
        + lines("iter {s}: loss {x:.4f}, time 135.20ms, mfu 23.45%", range(0, 601, 10))
        + "step 600: train loss 2.10, val loss 2.20\n", (1, 601, 61, 601, None, loss(600))),
    "llm.c, terminal": (lines("step {s:4d}/{T} | loss {x:.6f} (+0.12z)| norm 1.2345 (-0.22z)| lr {r:.2e} | 251.15 ms | "
        "49.9% bf16 MFU | 2087654 tok/s"), EVERY),
    "llm.c, main.log": ("s:0 tel:11.0098\n" + lines("s:{s} trl:{x:.4f} lr:{r:.6f} norm:2.50"), EVERY),
    "torchtitan": ("[rank0]:[titan] 2026-01-02 03:04:05,678 - root - INFO - Training starts at step 1, with local batch "
        "size 8, global batch size 64, sequence length 2048, total steps 1000 (warmup 200)\n" + lines(
        "[rank0]:\x1b[31m[titan] {STAMP} - root - INFO - \x1b[31mstep: {s:2d}  \x1b[32mloss: {x:7.4f}  "
        "\x1b[38;2;180;60;0mgrad_norm:  1.5  \x1b[33mmemory:  5.59GiB(5.89%)  \x1b[34mtps: 1,035  \x1b[36mtflops: 5.33  "
        "\x1b[35mmfu: 0.54%\x1b[39m"), (10, T, 60, 1000, None, loss(T))),
    "Megatron-LM": (lines(" [{DAY}] iteration {s:8d}/{T:8d} | consumed samples: {n:12d} | elapsed time per iteration "
        "(ms): 4201.9 | learning rate: {r:.6E} | global batch size:   256 | lm loss: {x:.6E} | loss scale: 1.0 | grad "
        "norm: 3.456 | number of skipped iterations:   0 | number of nan iterations:   0 |"), EVERY),
    "fairseq, simple": (lines("{DAY} | INFO | train_inner | epoch 001: {s:6d} / 700 loss={x}, nll_loss=9.1, ppl=45.6, "
        "wps=1000, num_updates={s}, lr={r}, gnorm=1.5, train_wall=50") + "2026-01-02 03:04:05 | INFO | valid | epoch 001 "
        "| valid on 'valid' subset | loss 9.9 | num_updates 600\n" + "2026-01-02 03:04:05 | INFO | train | epoch 001 | "
        "loss 5.5 | nll_loss 5.1 | num_updates 600 | lr 0.001\n", EVERY),
    "mmengine, epochs": (epochs("2026/01/02 03:04:05 - mmengine - INFO - Epoch(train)  [{e}][{s:4d}/200]  lr: {r:.4e}  "
        "eta: 7:30:00  time: 0.3063  data_time: 0.0062  memory: 3406  loss: {x:.4f}  loss_cls: 0.5", first=1), EVERY),
    "mmdetection 2, JSON lines": (
        '{"env_info": "Python: 3.8", "seed": 0}\n'
        + epochs(lambda s, x, r, e: json.dumps({"mode": "train", "epoch": e, "iter": s, "lr": r, "loss": x}), first=1), AGAIN,
    ),
    "MLX": ("Starting training..., iters: 600\nIter 1: Val loss 9.9, Val took 10.0s\n" + lines(
        "Iter {s}: Train loss {x:.3f}, Learning Rate {r:.3e}, It/sec 1.2, Tokens/sec 345.6, Trained Tokens 1234, Peak "
        "mem 12.3 GB"), (10, T, 60, T, 0.001, round(loss(T), 3))),
    "transformers' dicts with its bar": (
        "".join(f"\r {s // 6}%|█▏   | {s}/{T} [00:10<16:40,  1.01s/it]" + (
            f"{{'loss': {loss(s)}, 'grad_norm': 1.2, 'learning_rate': {rate(s)}, 'epoch': {s / 200:.2f}}}\n" * (s % 10 == 0)
        ) for s in range(1, T + 1)) + "{'train_runtime': 12.3, 'train_loss': 3.3, 'epoch': 3.0}\n", EVERY,
    ),
    "transformers' dicts alone": (lines("{{'loss': {x}, 'learning_rate': {r}, 'epoch': {p:.2f}}}"), "no column counts updates"),
    "Keras": (
        "".join(f"Epoch {e}/3\n" + "".join(
            f"\r{s}/200 [=====>......] - ETA: 1:00 - loss: {loss(200 * (e - 1) + s)} - accuracy: 0.1" for s in range(10, 201, 10)
        ) + " - val_loss: 1.0\n" for e in (1, 2, 3)), BARE,
    ),
    "a line an epoch without an end": (
        "".join(f"epoch {e} loss {loss(10 * e)} lr 0.001\n" for e in range(1, 51)), "no column counts updates",
    ),
    "Lightning's bar": (
        "\r".join(f"Epoch {e}:  {s // 2}%|█         | {s}/200 [00:10<01:30,  9.99it/s, loss={loss(200 * e + s)}, v_num=0]"
                  for e in range(3) for s in range(10, 201, 10)), BARE,
    ),
    "timm": (epochs("Train: {e} [{s:4d}/200 ({half:3d}%)]  Loss: {x:.4f} (6.95)  Time: 0.5s, 100.00/s  (0.5s)  LR: "
        "{r:.3e}  Data: 0.1 (0.1)"), EVERY),
    "PyTorch's MNIST example": (epochs("Train Epoch: {e} [{n}/12800 ({half}%)]\tLoss: {x:.6f}", first=1),
        "no column counts updates"),
    "OpenNMT": (lines("[{STAMP} INFO] Step {s}/{T}; acc: 3.5; ppl: 12345.6; xent: {x}; lr: {r}; sents: 123; 12/34 tok/s"), EVERY),
    "OLMo": (lines("{STAMP}\tINFO\t[step={s}/{T}]\n    train/CrossEntropyLoss={x}\n    train/Perplexity=123.4\n    "
        "optim/learning_rate_group0={r}\n    throughput/total_tokens={n:,}"), EVERY),
    "llama2.c": (lines("{s} | loss {x} | lr {r:e} | 0.5000 | 33.2ms"), EVERY),
    "a step and a colon": (lines("{s}: loss={x}"), BARE),
    "PyTorch's Quickstart": (
        "Epoch 1\n-----\n" + "".join(f"loss: {loss(s)}  [{64 * s:5d}/60000]\n" for s in range(1, 900, 100)),
        "counts samples or tokens rather than updates",
    ),
    "ranks with two losses": (lines("[rank0]: step {s} loss {x} lr {r}\n[rank1]: step {s} loss {more} lr {r}"), EVERY),
    "YOLOX": (lines("{DAY} | INFO     | yolox.core.trainer:after_iter:261 - epoch: 1/1, iter: {s}/{T}, gpu mem: 12Mb, "
        "iter_time: 0.7s, data_time: 0.02s, total_loss: {x}, iou_loss: 4.2, l1_loss: 0.0, lr: {r:.3e}, size: 640"), EVERY),
    "one epoch of several": (lines("Epoch [1/3], Step [{s}/{T}], Loss: {x}"), (10, T, 60, 3 * T, None, loss(T))),
    "a function of a file": (lines("{DAY} INFO (trainer.py:log_step:57) step {s} loss {x} lr {r}"), EVERY),
    "source with format codes": ("print(f'step {step:.2f} loss {loss:.2f} lr {group[\"lr\"]:.2e}')\n"
        + lines("step {s} loss {x} lr {r}") + "print(f'{step=:5d} {loss:.4}')\n", EVERY),
    **{f"samples by {batch}": ("".join(f"Epoch 1[{batch * n}/50{batch}11]\tloss: {loss(n)}\n" for n in range(1, 302, 100)),
        "counts samples or tokens rather than updates") for batch in (16, 24)},
    "samples of each batch": ("".join(f"Epoch 1[{min(32 * n, 5011)}/5011]\tloss: {loss(n)}\n" for n in range(1, 158)),
        "counts samples or tokens rather than updates"),
    "LLaMA-Factory": (lines(lambda s, x, r, e: json.dumps({"current_steps": s, "total_steps": T, "loss": x, "lr": r,
        "epoch": s / 200, "percentage": s / 6, "elapsed_time": "0:00:30", "total_tokens": 99 * s})), EVERY),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), FORMATS.values(), ids=FORMATS)
def test_what_programs_print(text: str, expected: Any) -> None:
    if isinstance(expected, str):
        with pytest.raises(LogError, match=expected):
            replay(logs_in(text, "log")[0])
        return
    [log] = logs_in(text, "log")
    updates, losses = (log.updates, log.losses) if log.begins == 1 else (log.updates[1:], log.losses[1:])
    rates = None if log.rates is None else pytest.approx(float(log.rates[updates[-1] - 1]))
    assert (updates[0], updates[-1], len(losses), log.total_steps, losses[-1]) == (*expected[:4], expected[5])
    assert expected[4] == rates


def test_keras_losses_are_said_to_be_means_and_the_bars_last_line_is_no_resume() -> None:
    bar = "Epoch {}/2\n" + "".join(f"\r\x1b[1m{s}/20\x1b[0m \x1b[32m━━━\x1b[0m \x1b[1m3s\x1b[0m 6ms/step - accuracy: 0.1 - loss: 2.{s}"
                                  for s in (5, 10, 15, 20, 20))  # fmt: skip
    [log] = logs_in(f"{bar.format(1)}\n{bar.format(2)}\n", "log")
    assert log.notes[0].startswith("Keras prints the mean")
    assert log.notes[1] == "2 losses are of a step that comes again: the last one counts"
    assert not any("resumed" in note for note in log.notes)


def test_an_epochs_length_is_that_of_its_count() -> None:
    text = "".join(f"Epoch: [{e}][{s}/500]\tLoss {9 - e}.5\n" for e in range(3) for s in range(1, 500, 100))
    [log] = logs_in(text, "log")
    assert (log.updates[5], log.updates[-1], log.total_steps) == (501, 1401, 1500)


def test_a_carriage_return_a_decimal_comma_and_a_broken_line_are_no_losses() -> None:
    [log] = logs_in("step 1 loss 4.5\rstep 2 loss 3,5\rstep 3 loss 2.5\rstep 4 loss 2.", "log")
    assert log.losses.tolist() == [4.5, 2.5, 2.0]


def test_of_several_ranks_the_first_is_read_and_said() -> None:
    text = "".join(f"[rank{r}]: step {s} loss {9 - s + r}\n" for s in (1, 2, 3) for r in (3, 0))
    [log] = logs_in(text, "log")
    assert log.losses.tolist() == [11.0, 10.0, 9.0]
    assert log.notes == ("3 lines of other ranks are left out",)


def test_a_data_frame_needs_no_pandas_of_ours() -> None:
    rows = [{"step": s, "loss": loss(s), "lr": rate(s), "val_loss": math.nan} for s in range(1, 101)]
    frame = SimpleNamespace(to_dict=lambda kind: rows if kind == "records" else None)
    result = replay(frame, first_loss=None)
    assert (result.log.chosen, result.log.total_steps) == ("step, loss, lr; 100 of 100 updates", 100)
    assert replay(frame, total_steps=200).log.total_steps == 200


LENGTHS = {
    "the end of the log, not of its losses": ("step,loss,val_loss\n1,4,\n2,3,\n90,,9\n", 90, None),
    "a loss that is not finite is of the run": ("step,loss\n1,4\n2,3\n3,nan\n90,nan\n", 90, None),
    "max_steps": ("step,loss,max_steps\n1,4,500\n2,3,500\n", 500, None),
    "a first loss of 0": ("step,loss\n0,0\n1,0\n2,4\n3,3\n", 4, "the first 2 losses are 0"),
}


@pytest.mark.parametrize(("text", "total", "note"), LENGTHS.values(), ids=LENGTHS)
def test_how_long_a_run_was(text: str, total: int, note: str | None) -> None:
    [log] = logs_in(text, "log")
    assert log.total_steps == total
    assert note is None or log.notes[0].startswith(note)


@pytest.mark.parametrize("last", [101, 250, 400])
def test_rates_on_other_steps_are_left_out(last: int) -> None:
    log = make_log("a", range(1, 101), [loss(s) for s in range(1, 101)], range(1, last + 1), np.ones(last))
    note = f"the rates are not used: their steps go to {last}, those of the losses to 100"
    assert (log.rates is None) == (last > 102) == (note in log.notes)


def test_what_begins_late_leads_with_it_or_is_refused() -> None:
    def late(first: int, **options: Any) -> str:
        return replay((range(first, 1001), [loss(s) for s in range(first, 1001)]), **options).answer

    assert late(11).startswith("Your warm-up: not in the log. Ours would have ended at ")
    assert late(30).startswith("The log begins at update 30 (3.0%), so this is a guess. Your")
    assert late(300, first_loss=10.0).startswith("The log begins at update 300")
    logged = make_log("a", range(300, 1001), [loss(s) for s in range(300, 1001)], first_loss=10.0)
    assert replay(logged).answer == late(300, first_loss=10.0)
    assert (
        "first_loss is not used: the log has the loss at update 1" in make_log("a", [1, 2], [3, 2], first_loss=9).notes
    )
    with pytest.raises(LogError, match="the losses begin at update 300 of 1,000"):
        late(300)


@pytest.mark.parametrize(
    ("used", "falls", "follows"),
    [
        (150, 60.0, "The two are alike, so little would change."),
        (20, 60.0, "Ours is longer. Whether that trains better, only a run shows"),
        (290, 30.0, "Ours is shorter. Whether"),
        (20, 1e9, "The loss fell too slowly to end it, so for this run ours is a ramp of fixed length."),
    ],
)
def test_one_answer_and_what_follows_from_it(used: int, falls: float, follows: str) -> None:
    steps = np.arange(1, 601)
    result = replay((steps, 0.2 + 9.8 * np.exp(-steps / falls), np.minimum(1.0, steps / used)))
    assert follows in result.answer
    assert (
        f"Your warm-up: {used} updates ({used / 6:.1f}%). Ours would have ended at {result.warmup_steps} ("
        in result.answer
    )
