"""Text of every format becomes the same curve; what is no log is refused in words."""

import contextlib
import json
import math

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
    return same and (
        log.rates is None if not rates else log.rates is not None and log.rates.tolist() == [0.1, 0.2, 0.2]
    )


TABLE = "\n".join(f"{step},{loss},{lr}" for step, loss, lr in ROWS)
TABLES = {
    "comma": f"step,loss,lr\n{TABLE}\n",
    "quoted": f'"Step","train/loss","train/learning_rate"\n{TABLE}',
    "no header": TABLE,
    "tab": f"global_step\ttrain_loss\tlearning_rate\n{TABLE}".replace(",", "\t"),
    "semicolon": f"iter;training loss;lr\n{TABLE}".replace(",", ";"),
    "spaces": f"step  loss  lr\n{TABLE}".replace(",", "   "),
    "numpy's comment": f"# step loss lr\n{TABLE}".replace(",", " "),
    "windows": f"step,loss,lr\n{TABLE}\n".replace("\n", "\r\n"),
    "header again after a resume": "step,loss,lr\n1,4.0,0.1\nstep,loss,lr\n2,3.0,0.2\n3,2.0,0.2\n",
    "JSON lines": "\n".join(json.dumps({"step": s, "loss": x, "lr": r}) for s, x, r in ROWS),
    "JSON list": json.dumps([{"_step": s, "train/loss": x, "lr-AdamW": r} for s, x, r in ROWS], indent=1),
    "JSON columns": json.dumps({"step": [1, 2, 3], "loss": [4.0, 3.0, 2.0], "lr": [0.1, 0.2, 0.2]}),
    "Excel's delimiter": f"sep=;\nstep;loss;lr\n{TABLE}".replace(",", ";"),
    "missing": "step,loss,lr\n0,NA,None\n1,4,0.1\n2,3,0.2\n3,2,0.2\n",
    "rates apart": "step,lr-AdamW,train_loss\n1,0.1,\n1,,4\n2,0.2,\n2,,3\n3,0.2,\n3,,2\n",
    "other losses": "step,val/loss,lr,train/loss\n1,9,0.1,4\n2,9,0.2,3\n3,9,0.2,2\n",
}


@pytest.mark.parametrize("text", TABLES.values(), ids=TABLES)
def test_the_same_curve_in_every_form(text: str) -> None:
    assert is_the_curve(only(text))


@pytest.mark.parametrize("text", ["step;loss\n1;4,0\n2;3,0", 'step,loss\n"1,000","3.5"\n"2,000","2.5"'])
def test_a_comma_within_a_number_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(LogError, match=r"2 of 2 losses or their steps are no numbers .*: write them as 1234\.5"):
        only(text)


def test_cells_that_are_no_numbers_are_counted_and_said() -> None:
    rows = [f"{step},{'bad' if step == 7 else 9 - step / 10},{'x' if step < 3 else 0.1}" for step in range(1, 11)]
    log = only("\n".join(["step,loss,lr", *rows]))
    assert 7 not in log.updates
    assert log.notes[0] == "1 of 10 losses or their steps are no numbers and left out (the first: 'bad')"
    assert log.notes[1] == "2 of 10 rates or their steps are no numbers and left out (the first: 'x')"
    words = only("step,loss,lr\n1,4,cosine\n2,3,cosine\n")
    assert words.rates is None
    assert "2 of 2 rates" in words.notes[0]
    with pytest.raises(LogError, match="3 of 5 losses or their steps are no numbers and left out .*'high'"):
        only("step,loss\n1,high\n2,low\n3,low\n4,4\n5,3\n")


def test_named_columns_are_taken_before_the_usual_ones() -> None:
    text = "step,loss,it,nll,eta\n10,9,1,4,0.1\n20,9,2,3,0.2\n30,9,3,2,0.2\n"
    assert is_the_curve(only(text, loss="nll", step="it", lr="eta"))


def test_of_several_losses_the_one_with_the_most_rows_is_read_and_said_to_be() -> None:
    both = [{"step": s, "loss": 9.0 - s, "train/loss": x, "lr": r} for s, x, r in ROWS]
    for row in both[:1]:
        del row["loss"]
    log = only("\n".join(map(json.dumps, both)))
    assert is_the_curve(log)
    assert log.notes == ("train/loss is read as the loss, and not loss; loss= (--loss) names another",)
    equal = only("step,train_loss,loss\n1,9,4\n2,8,3\n3,7,2\n")
    assert is_the_curve(equal, rates=False)
    assert equal.notes == ("loss is read as the loss, and not train_loss; loss= (--loss) names another",)
    assert only("step,loss,train_loss\n1,4,\n2,3,\n3,2,\n3,,9\n").notes == ()  # the mean of a whole run


@pytest.mark.parametrize(
    ("column", "train", "other"), [("split", "train", "val"), ("Phase", "", "Validation"), ("mode", "training", "test")]
)
def test_rows_of_validation_are_left_out(column: str, train: str, other: str) -> None:
    rows = [line for s, x, r in ROWS for line in (f"{train},{s},{x},{r}", f"{other},{s},9,")]
    log = only("\n".join([f"{column},step,loss,lr", *rows]))
    assert is_the_curve(log)
    assert log.notes == (f"3 rows of validation, by the column {column!r}, are left out",)
    alone = only("\n".join([f"{column},step,loss,lr", *rows[1::2]]))  # a log of validation alone
    assert alone.losses.tolist() == [9.0, 9.0, 9.0]
    assert alone.notes == ()


@pytest.mark.parametrize("other", ["loss_scale", "Train/Samples/loss_scaler", "loss_weight", "aux/loss_coef"])
def test_a_factor_of_the_loss_is_not_the_loss(other: str) -> None:
    assert is_the_curve(only(f"step,{other},lm_loss\n1,64,4\n2,32,3\n3,16,2\n"), rates=False)
    with pytest.raises(LogError, match="no column looks like a training loss"):
        only(f"step,{other},nll\n1,64,4\n2,32,3\n")


def test_our_own_losses_give_way_to_the_runs() -> None:
    rows = [{"step": s, "autowarm/target_loss": 1.0, "autowarm/loss": 9.0, "lm_loss": x, "lr": r} for s, x, r in ROWS]
    assert is_the_curve(only("\n".join(map(json.dumps, rows))))
    ours = [{"step": s, "train/autowarm/loss": x, "lr": r} for s, x, r in ROWS]
    assert is_the_curve(only("\n".join(map(json.dumps, ours))))
    with pytest.raises(LogError, match=r"no column looks like a training loss\. Name it"):
        only("step,autowarm/loss,autowarm/target_loss,ce\n1,4,1,4\n2,3,1,3\n")


def test_a_table_of_three_columns_without_a_header_says_what_they_are_taken_as() -> None:
    assert only(TABLE).notes == ("the table has no header: its columns are taken as step, loss, lr",)
    assert only("1 4\n2 3\n3 2\n").notes == ()


def test_two_columns_have_no_rates_and_one_counts_its_rows() -> None:
    assert is_the_curve(only("1 4\n2 3\n3 2\n"), rates=False)
    log = only("4\n3\n2\n")
    assert is_the_curve(log, rates=False)
    assert "each loss counts as one update" in log.notes[0]


@pytest.mark.parametrize("first", [0, 1, 9])
@pytest.mark.parametrize("every", [1, 10])
def test_where_the_step_begins_again_with_each_epoch_the_epochs_are_joined(first: int, every: int) -> None:
    steps = [(epoch, step) for epoch in range(4) for step in range(first, first + 100, every)]
    rows = [f"{epoch},{step},{9 - i / 100},{i}" for i, (epoch, step) in enumerate(steps)]
    log = only("\n".join(["epoch,step,loss,lr", *rows]))
    logged = slice(-len(rows), None)  # a log that begins late has a loss at update 1 before its own
    assert (np.diff(log.updates[logged]) == every).all()
    assert log.losses[logged].tolist() == [9 - i / 100 for i in range(len(rows))]
    assert log.rates is not None
    assert log.rates[-1] == len(rows) - 1
    assert log.notes[0].startswith("the step begins again in each of 4 epochs")


def test_a_resume_among_epochs_goes_back_in_both_and_the_later_losses_count() -> None:
    tries = [[(0, 9), (1, 9), (2, 5)], [(1, 9), (2, 9)]]  # the first crashed in epoch 2
    rows = [(e, s) for tried in tries for e, last in tried for s in range(last + 1)]
    log = only("\n".join(["epoch,step,loss", *(f"{e},{s},{i}" for i, (e, s) in enumerate(rows, start=1))]))
    assert log.updates.tolist() == list(range(1, 31))
    assert log.losses.tolist() == [*range(1, 11), *range(27, 47)]
    assert any("resumed at step 10" in note for note in log.notes)


def test_an_epoch_beside_a_step_that_counts_the_whole_run_changes_nothing() -> None:
    log = only("step,loss,epoch\n1,4,0.5\n2,3,1\n3,2,1.5\n")
    assert is_the_curve(log, rates=False)
    assert log.notes == ()


finite = st.floats(-1e6, 1e6, allow_subnormal=False).filter(bool)  # a first loss of 0 is left out


@given(st.lists(finite, min_size=2, max_size=30), st.sampled_from([",", "\t", " ", "  "]), st.booleans())
def test_a_table_of_two_columns_comes_back_to_the_bit(losses: list[float], mark: str, header: bool) -> None:
    lines = [f"step{mark}loss"] * header + [f"{i}{mark}{loss!r}" for i, loss in enumerate(losses, start=1)]
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


def test_the_trainers_columns_hold_means_in_other_forms_too() -> None:
    state = [(s, 9.0 - s / 10, 1e-3, s / 80) for s in (10, 20, 30)]
    history = [dict(zip(("step", "loss", "learning_rate", "epoch"), row, strict=True)) for row in state]
    wandb = [
        dict(zip(("train/global_step", "train/loss", "train/learning_rate", "train/epoch"), row, strict=True))
        for row in state
    ]
    events = [{"step": row["train/global_step"], tag: row[tag]} for row in wandb for tag in list(row)[1:]]
    for rows in (history, wandb, events):
        log = only(json.dumps(rows))
        assert (log.averaged, log.updates.tolist()) == (True, [1, 5, 15, 25])
        assert any("begins at update 5, the middle of its first mean" in note for note in log.notes)
        assert log.notes[0] == "the columns are those of transformers' Trainer, whose losses are means"
    whole = [{**row, "step": i} for i, row in enumerate(history, start=1)]
    by_hand = [{**row, "epoch": 1} for row in history]
    other = [{"lr" if key == "learning_rate" else key: value for key, value in row.items()} for row in history]
    for rows in (whole, by_hand, other):
        log = only(json.dumps(rows))
        assert (log.averaged, any("Trainer" in note for note in log.notes)) == (False, False)


def test_a_chart_of_weights_and_biases_holds_several_runs() -> None:
    text = (
        '"Step","blue - train/loss","blue - train/loss__MIN","blue - train/loss__MAX","red - 2 - train/loss"\n'
        '"0","4","1","9","8"\n"1","3","1","9","7"\n"2","2","1","9",""\n'
    )
    blue, red = logs_in(text, "chart.csv")
    assert (blue.name, red.name) == ("chart.csv: blue", "chart.csv: red - 2")
    assert is_the_curve(blue, rates=False)
    assert red.losses.tolist() == [8.0, 7.0]


@pytest.mark.parametrize("column", ["iter", "iteration", "step", "train/step"])
def test_the_calls_that_weights_and_biases_counts_give_way_to_the_updates(column: str) -> None:
    rows: list[dict[str, float]] = [{"_step": 2 * s, column: s, "loss": x, "lr": r} for s, x, r in ROWS]
    assert is_the_curve(only("\n".join(map(json.dumps, rows))))
    apart = [{"_step": s, "loss": x, "lr": r} for s, x, r in ROWS] + [{"_step": 3, column: 9, "val/loss": 1}]
    assert is_the_curve(only("\n".join(map(json.dumps, apart))))


def test_where_the_calls_alone_are_counted_it_is_said() -> None:
    text = "_step,loss,lr\n1,4,0.1\n2,3,0.2\n3,2,0.2\n"
    assert only(text).notes == (
        "the column _step counts calls of wandb.log, which may not be updates; step= (--step) names another",
    )
    assert only(text, step="_step").notes == ()


def test_fairseqs_updates_are_steps_and_samples_and_tokens_are_not() -> None:
    assert is_the_curve(only("epoch,num_updates,loss,lr\n1,1,4,0.1\n1,2,3,0.2\n1,3,2,0.2\n"))
    for column in ("tokens", "num_tokens_seen", "Train/Samples"):
        with pytest.raises(LogError, match=f"column '{column}' counts samples or tokens rather than updates: choose"):
            only(f"{column},loss,step\n40960,4,1\n81920,3,2\n", step=column)


def test_a_column_of_runs_tells_them_apart_and_a_run_without_losses_is_left_out() -> None:
    text = "run,step,loss\na,1,4\nb,1,8\na,2,3\nb,2,7\na,3,2\nb,3,6\nc,1,\n"
    first, second = logs_in(text, "log")
    assert is_the_curve(first, rates=False)
    assert second.losses.tolist() == [8.0, 7.0, 6.0]


def test_one_object_with_a_list_for_each_column_is_no_curve() -> None:
    columns = {"steps": [1, 2, 3], "losses": [4.0, 3.0, 2.0], "lr": [0.1, 0.2, 0.2], "other": [9.0, 8.0, 7.0]}
    assert only(json.dumps(columns)).rates.tolist() == [0.1, 0.2, 0.2]
    alone = {name: columns[name] for name in ("steps", "losses", "other")}
    assert only(json.dumps(alone), loss="other").losses.tolist() == [9.0, 8.0, 7.0]


def test_a_last_line_that_is_cut_off_is_left_out_and_said_to_be() -> None:
    log = only('{"step": 1, "loss": 4}\n{"step": 2, "loss": 3}\n{"step": 3, "lo')
    assert log.losses.tolist() == [4.0, 3.0]
    assert log.notes == ("line 3 is cut off and left out",)


MALFORMED = {
    "": "the file is empty",
    " \n": "the file is empty",
    "#\n# here": "the file holds comments alone",
    "step,loss\n": "a header \\(step, loss\\) and no rows",
    "step,accuracy\n1,0.5\n2,0.6": "no column looks like a training loss.*--loss.*columns: step, accuracy",
    "step,dice_loss,ce_loss\n1,1,1\n2,1,1": "which is the loss, dice_loss or ce_loss\\?.*--loss",
    "step,val_loss\n1,1\n2,1": "no column looks like a training loss.*columns: step, val_loss",
    "epoch,loss\n1,4\n2,3": "a loss per epoch says too little",
    "step,loss\n1,high\n2,low": "2 of 2 losses or their steps are no numbers.*'high'.*columns: step, loss",
    "step,loss\n1,\n,4": "the column 'loss' has no number beside a 'step'",
    "1,2,3,4\n5,6,7,8": "4 columns without a header",
    "Dear reader\nthis is a letter": "is no table|no column looks like a training loss",
    "Epoch 1: loss is 3.2\nEpoch 2: loss is 3.0, and more": "no column|is no table",
    '{"step": 1, "loss": 2}\nnot json\n{"step": 3, "loss": 2}': "line 2 is no JSON: 'not json'",
    "[1, 2, 3]": "this JSON holds no rows",
    "[]": "this JSON holds no rows",
    '{"log_history": []}': "this JSON holds no rows",
    '{"log_history": [{"step": 1, "eval_loss": 2}]}': "no column looks like a training loss.*step, eval_loss",
    "step,loss\n1,4": "1 finite losses",
    "step,loss\n1e400,4\n2,3": "steps must be whole numbers from 0, got inf",
    "[" * 100_000: "line 1 is no JSON",
    f'{{"log_history": [{{"step": 1, "loss": 1{"0" * 400}}}]}}': "1 of 1 losses or their steps are no numbers",
    '{"losses": [3, "x"]}': "1 of 2 losses or their steps are no numbers.*'x'|1 finite losses",
}


@pytest.mark.parametrize(("text", "message"), MALFORMED.items())
def test_what_is_no_log_is_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(LogError, match=f"log: .*({message})"):
        logs_in(text, "log")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"loss": "train_los"},
            "there is no column 'train_los': did you mean 'train/loss'\\?.*columns: step, train/loss",
        ),
        ({"step": "tokens"}, "there is no column 'tokens'"),
        ({"lr": "rate"}, "there is no column 'rate'"),
    ],
)
def test_a_column_that_is_not_there_is_named_with_those_that_are(columns: dict[str, str], message: str) -> None:
    with pytest.raises(LogError, match=message):
        logs_in("step,train/loss\n1,4\n2,3", "log", **columns)


@given(st.text(max_size=200))
def test_any_text_gives_a_log_or_an_error_in_words(text: str) -> None:
    with contextlib.suppress(LogError):
        logs_in(text, "log")
