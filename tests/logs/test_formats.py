# ruff: noqa: E501 (a line of a log is a line)
"""Text of every format becomes the same curve; what is no log is refused in words."""

import contextlib
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autowarm.logs.formats import logs_in
from autowarm.logs.log import Log, LogError

ROWS = [(1, 4.0, 0.1), (2, 3.0, 0.2), (3, 2.0, 0.2)]


def only(text: str, **columns: str) -> Log:
    [log] = logs_in(text, "log", **columns)
    return log


def is_the_curve(log: Log, *, rates: bool = True) -> bool:
    same = log.updates.tolist() == [1, 2, 3] and log.losses.tolist() == [4.0, 3.0, 2.0]
    return same and (log.rates is None) == (not rates) and (not rates or log.rates.tolist() == [0.1, 0.2, 0.2])


TABLE = "\n".join(f"{step},{loss},{lr}" for step, loss, lr in ROWS)
TABLES = {
    "comma": f"step,loss,lr\n{TABLE}\n",
    "tab": f"global_step\ttrain_loss\tlearning_rate\n{TABLE}".replace(",", "\t"),
    "semicolon": f"iter;training loss;lr\n{TABLE}".replace(",", ";"),
    "spaces": f"step  loss  lr\n{TABLE}".replace(",", "   "),
    "windows": f"step,loss,lr\n{TABLE}\n".replace("\n", "\r\n"),
    "header again after a resume": "step,loss,lr\n1,4.0,0.1\nstep,loss,lr\n2,3.0,0.2\n3,2.0,0.2\n",
    "JSON lines": "\n".join(json.dumps({"step": s, "loss": x, "lr": r}) for s, x, r in ROWS),
    "JSON list": json.dumps([{"_step": s, "train/loss": x, "lr-AdamW": r} for s, x, r in ROWS], indent=1),
    "missing": "step,loss,lr\n0,NA,None\n1,4,0.1\n2,3,0.2\n3,2,0.2\n",
    "rates apart": "step,lr-AdamW,train_loss\n1,0.1,\n1,,4\n2,0.2,\n2,,3\n3,0.2,\n3,,2\n",
}


@pytest.mark.parametrize("text", TABLES.values(), ids=TABLES)
def test_the_same_curve_in_every_form(text: str) -> None:
    assert is_the_curve(only(text))


def json_lines(row: Callable[[int, float, float], dict[str, float]]) -> str:
    return "\n".join(json.dumps(row(*one)) for one in ROWS)


CALLS = "_step counts calls of wandb.log, which may not be updates; step= (--step) names another"
FACTORS = ["loss_scale", "aux/loss_coef"]
CURVE = [4.0, 3.0, 2.0]

# By what stands in a log: its text, the columns that are named, those that are read, the losses, and what is said.
READ: dict[str, tuple[str, dict[str, str], str, list[float], list[str]]] = {
    "columns that are named": (
        "step,loss,it,nll,eta\n10,9,1,4,0.1\n20,9,2,3,0.2\n30,9,3,2,0.2\n",
        {"loss": "nll", "step": "it", "lr": "eta"}, "it, nll, eta", CURVE, [],
    ),
    "several losses": (
        json_lines(lambda s, x, r: {"step": s} | ({"loss": 9.0 - s} if s > 1 else {}) | {"train/loss": x, "lr": r}), {},
        "step, train/loss, lr", CURVE, ["train/loss is read as the loss, and not loss; loss= (--loss) names another"],
    ),
    "the mean of a whole run": ("step,loss,train_loss\n1,4,\n2,3,\n3,2,\n3,,9\n", {}, "step, loss", CURVE, []),
    "validation alone": ("split,step,loss\nval,1,9\nval,2,8\n", {}, "step, loss", [9.0, 8.0], []),
    **{f"{name}, a factor": (f"step,{name},lm_loss\n1,64,4\n2,32,3\n3,16,2\n", {}, "step, lm_loss", CURVE, [])
       for name in FACTORS},
    "our own losses beside the run's": (
        json_lines(lambda s, x, r: {"step": s, "autowarm/target_loss": 1.0, "autowarm/loss": 9.0, "lm_loss": x, "lr": r}),
        {}, "step, lm_loss, lr", CURVE, [],
    ),
    "an epoch beside a step of the whole run": ("step,loss,epoch\n1,4,0.5\n2,3,1\n3,2,1.5\n", {}, "step, loss", CURVE, []),
    **{f"W&B's calls beside {name}": (
        json_lines(lambda s, x, r, name=name: {"_step": 2 * s, name: s, "loss": x, "lr": r}), {}, f"{name}, loss, lr", CURVE, [],
    ) for name in ("iteration", "train/step")},
    "W&B's calls beside steps of other rows": (
        json_lines(lambda s, x, r: {"_step": s, "loss": x, "lr": r}) + '\n{"_step": 3, "iter": 9, "val/loss": 1}', {},
        "_step, loss, lr", CURVE, [CALLS],
    ),
    "W&B's calls, named": ("_step,loss,lr\n" + TABLE, {"step": "_step"}, "_step, loss, lr", CURVE, []),
    "a last line that is cut off": (
        '{"step": 1, "loss": 4}\n{"step": 2, "loss": 3}\n{"step": 3, "lo', {}, "step, loss", [4.0, 3.0],
        ["line 3 is cut off and left out"],
    ),
    "rates that are words": ("step,loss,lr\n1,4,cosine\n2,3,cosine\n", {}, "step, loss, lr", [4.0, 3.0], ["the rates in the log are not positive numbers"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "named", "chosen", "losses", "notes"), READ.values(), ids=READ)
def test_what_is_read_and_what_is_said_of_it(
    text: str, named: dict[str, str], chosen: str, losses: list[float], notes: list[str]
) -> None:
    log = only(text, **named)
    assert log.losses.tolist() == losses
    assert log.chosen.startswith(f"{chosen}; ")
    assert log.rates is None or len(losses) != 3 or log.rates.tolist() == [0.1, 0.2, 0.2]
    assert [note.startswith(words) for note, words in zip(log.notes, notes, strict=False)] == [True] * len(notes)
    assert notes or not log.notes


finite = st.floats(-1e6, 1e6, allow_subnormal=False).filter(bool)  # a first loss of 0 is left out


@given(st.lists(finite, min_size=2, max_size=30), st.sampled_from([",", "\t", " ", "  "]))
def test_a_table_of_two_columns_comes_back_to_the_bit(losses: list[float], mark: str) -> None:
    lines = [f"step{mark}loss", *(f"{i}{mark}{loss!r}" for i, loss in enumerate(losses, start=1))]
    assert only("\n".join(lines)).losses.tolist() == losses


@given(st.lists(finite | st.just(math.nan), min_size=2, max_size=30))
def test_json_lines_come_back_to_the_bit_and_null_is_not_finite(losses: list[float]) -> None:
    if sum(map(math.isfinite, losses)) < max(2, len(losses) / 2):
        return
    rows = [{"step": i, "loss": loss if math.isfinite(loss) else None} for i, loss in enumerate(losses, start=1)]
    assert np.array_equal(only("\n".join(map(json.dumps, rows))).losses, losses, equal_nan=True)


def test_a_trainers_state_knows_the_planned_length_and_holds_means() -> None:
    history = [{"step": s, "loss": 9.0 - s / 10, "learning_rate": 1e-3, "epoch": 0.1} for s in (10, 20, 30)]
    history += [{"step": 30, "eval_loss": 1.0}, {"step": 30, "train_loss": 5.0, "train_runtime": 1.0}]
    log = only(json.dumps({"log_history": history, "max_steps": 100, "global_step": 30}))
    assert (log.total_steps, log.averaged, log.updates.tolist()) == (100, True, [1, 5, 15, 25])
    assert log.losses.tolist() == [8.0, 8.0, 7.0, 6.0]


def test_a_chart_of_weights_and_biases_holds_several_runs() -> None:
    text = (
        '"Step","blue - train/loss","blue - train/loss__MIN","blue - train/loss__MAX","red - 2 - train/loss"\n'
        '"0","4","1","9","8"\n"1","3","1","9","7"\n"2","2","1","9",""\n'
    )
    blue, red = logs_in(text, "chart.csv")
    assert (blue.name, red.name) == ("chart.csv: blue", "chart.csv: red - 2")
    assert is_the_curve(blue, rates=False)
    assert red.losses.tolist() == [8.0, 7.0]


def test_a_column_of_runs_tells_them_apart_and_a_run_without_losses_is_left_out() -> None:
    text = "run,step,loss\na,1,4\nb,1,8\na,2,3\nb,2,7\na,3,2\nb,3,6\nc,1,\n"
    first, second = logs_in(text, "log")
    assert is_the_curve(first, rates=False)
    assert second.losses.tolist() == [8.0, 7.0, 6.0]


MALFORMED = {
    "": "the file is empty",
    " \n": "the file is empty",
    **dict.fromkeys(
        ("#\n# here", "step,loss\n", "1,4\n2,3", "1,2,3,4\n5,6,7,8", "loss\n4\n3\n"),
        "no table with a header and rows|no column counts updates",
    ),
    "split,step,loss\ntrain,1,4\nval,1,9\ntrain,2,3": "the column 'split' has rows of validation among those of training",
    **{
        f"epoch,step,loss\n1,0,4\n1,1,3\n1,2,3\n{rows}": "the steps begin again in each epoch: pass steps that count"
        for rows in ("2,0,2\n2,1,2\n2,2,1", "2,0,2\n2,1,1", "1.5,0,2\n1.5,1,1\n")
    },
    "step,accuracy\n1,0.5\n2,0.6": "no column looks like a training loss.*--loss.*columns: step, accuracy",
    "step,dice_loss,ce_loss\n1,1,1\n2,1,1": "which is the loss, dice_loss or ce_loss\\?.*--loss",
    "epoch,loss\n1,4\n2,3": "no column counts updates",
    **{
        json_lines(lambda s, x, r, name=name: {name: 512 * s, "loss": x, "lr": r}): "no column counts updates"
        for name in ("tokens", "samples_seen", "Total Tokens")
    },
    "step,loss\n1,high\n2,low": "'high' in the column 'loss' is no number.*columns: step, loss",
    "step,loss\n1,\n,4": "the column 'loss' has no number beside a 'step'",
    "Epoch 1: loss is 3.2\nEpoch 2: loss is 3.0, and more": "no column|is no table",
    '{"step": 1, "loss": 2}\nnot json\n{"step": 3, "loss": 2}': "line 2 is no JSON: 'not json'",
    "[1, 2, 3]": "this JSON holds no rows",
    '{"log_history": [{"step": 1, "eval_loss": 2}]}': "no column looks like a training loss.*step, eval_loss",
    "step,loss\n1,4": "1 finite losses",
    "step,loss\n1e400,4\n2,3": "steps are whole numbers from 0, got inf",
    "[" * 100_000: "line 1 is no JSON",
    f'{{"log_history": [{{"step": 1, "loss": 1{"0" * 400}}}]}}': "'10+' in the column 'loss' is no number",
    "step;loss\n1;4\n2;3,0": r"'3,0' in the column 'loss' is no number: write it as 1234\.5",
    'step,loss\n"1,000",3.5\n"2,000",2.5': r"'1,000' in the column 'step' is no number: write it as 1234\.5",
    **{f"step,{name},nll\n1,64,4\n2,32,3\n": "no column looks like a training loss" for name in FACTORS},
    "step,autowarm/loss,autowarm/target_loss,ce\n1,4,1,4\n2,3,1,3\n": r"no column looks like a training loss\. Name it",
    '{"losses": [3, 2]}': "no column counts updates",
}


@pytest.mark.parametrize(("text", "message"), MALFORMED.items())
def test_what_is_no_log_is_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(LogError, match=f"log: .*({message})"):
        logs_in(text, "log")


NAMED: list[tuple[str, dict[str, str], str]] = [
    ("train/loss", {"loss": "train_los"}, r"'train_los': did you mean 'train/loss'\?.*columns: step, train/loss"),
    ("train/loss", {"step": "tokens"}, "there is no column 'tokens'"),
    ("train/loss", {"lr": "rate"}, "there is no column 'rate'"),
    *((f"loss,{name}", {"step": name}, f"'{name}' counts samples or tokens rather than updates: choose")
      for name in ("tokens", "num_tokens_seen", "Train/Samples")),
]  # fmt: skip


@pytest.mark.parametrize(("header", "named", "message"), NAMED)
def test_a_column_that_is_not_there_or_counts_something_else(header: str, named: dict[str, str], message: str) -> None:
    with pytest.raises(LogError, match=message):
        only(f"step,{header}\n1,4,40960\n2,3,81920\n", **named)


@given(st.text(max_size=200))
def test_any_text_gives_a_log_or_an_error_in_words(text: str) -> None:
    with contextlib.suppress(LogError):
        logs_in(text, "log")
