import contextlib
import io
from pathlib import Path
from pkgutil import resolve_name

import pytest

from autowarm.lab.commands import main
from autowarm.lab.config import CompareConfig, FigureConfig, RunConfig, SweepConfig, UsageError
from autowarm.lab.config.build import merged, parse, presets, read_yaml
from autowarm.lab.registry import OPTIMIZERS, SCHEDULES, SMALL_TASKS
from autowarm.lab.tasks import make_task

from ..helpers import refused

CONFIGS = {"train": RunConfig, "compare": CompareConfig, "sweep": SweepConfig, "smoothness": SweepConfig}  # fmt: skip
OWN = f"{Path(__file__).parents[3] / 'examples' / 'own_task_nanogpt.py'}:NanoGPT"


def compare_config(*words: str, preset: str | None = "demo") -> CompareConfig:
    return parse(list(words), CompareConfig, "compare", "about", preset=preset)


@pytest.mark.parametrize(("command", "name"), [(command, name) for command in CONFIGS for name in presets(command)
                                               if not name.endswith("base")])  # fmt: skip
def test_every_preset_is_valid(command: str, name: str) -> None:
    config = parse(["--config", name], CONFIGS[command], command, "")
    if isinstance(config, CompareConfig | SweepConfig):
        names = [point.name for point in config.points()]
        assert len(set(names)) == len(names) > 1


def test_a_section_with_a_name_may_be_given_by_it() -> None:
    def optimizer(*words: str) -> tuple[str, float]:
        run = parse(list(words), RunConfig, "train", "about")
        return run.optimizer.name, run.optimizer.lr

    assert optimizer("--optimizer", "lion", "--optimizer.lr", "0.1") == ("lion", 0.1)
    assert optimizer("--optimizer=lion") == optimizer("--optimizer", "{name: lion}") == ("lion", 3e-3)
    assert parse(["--model", "swin"], RunConfig, "train", "about").model.name == "swin"
    assert parse(["--schedule", "greedy"], RunConfig, "train", "about").schedule.kind == "greedy"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: {setps: 3}", "unknown key 'run.setps'; did you mean 'run.steps'?"),
        ("- just\n- a list", "expected keys and values, got list"),
        ("run: 3", "'run' is a group of options and must hold keys and values, got 3"),
        ("run: {steps: }", "run.steps: expected a whole number, got null"),
        ("run: {steps: few}", "run.steps: expected a whole number, got 'few'"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        compare_config("--config", str(path))
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_folders_may_be_in_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "mine.yaml").write_text("run.data.corpus: ~/corpus\nout: ~other\n")
    config = compare_config("--config", str(tmp_path / "mine.yaml"), "--store=~/runs", preset=None)
    assert (config.store, config.run.data.corpus, config.out) == (f"{tmp_path}/runs", f"{tmp_path}/corpus", "~other")


def test_a_file_may_extend_another(tmp_path: Path) -> None:
    (tmp_path / "under.yaml").write_text("a: {x: 1, y: 2}\nb: 3\n")
    (tmp_path / "over.yaml").write_text(f"extends: {tmp_path}/under.yaml\nlists: [&l [1]]\na: {{y: 4}}\n")
    assert read_yaml(str(tmp_path / "over.yaml"))[0] == {"a": {"x": 1, "y": 4}, "b": 3}
    assert merged({"a": {"x": 1}}, {"a": 2}) == {"a": 2}


@pytest.mark.parametrize("task", ["mine.py:Mine", "Mine@0123456789ab", "no-such-task"])
def test_a_file_cannot_name_a_task_of_ones_own(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its code runs, so only the command line may name it: `compare --task`."""
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\nMine = 1\n")
    path = tmp_path / "mine.yaml"
    for command, text in (("train", f"task: {task}"), ("compare", f"run: {{task: '{task}'}}"),
                          ("sweep", f"base: {{task: '{task}'}}\ncells: {{a: {{}}}}")):  # fmt: skip
        path.write_text(text)
        with contextlib.chdir(tmp_path):
            assert "task" in refused([command, "--config", str(path), "--out", str(tmp_path / "out")], capsys)
        assert sorted(one.name for one in tmp_path.iterdir()) == ["mine.py", "mine.yaml"]


def shown(command: str, *words: str) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), pytest.raises(SystemExit, match="0"):
        main([command, *words])
    return text.getvalue()


@pytest.mark.parametrize("command", ["compare", "train", "sweep", "smoothness", "figure"])
def test_help_lists_every_key(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = shown(command, "--help")
    assert max(map(len, text.splitlines())) <= 80
    keys = {**CONFIGS, "figure": FigureConfig}[command].__dataclass_fields__
    flat = [key for key, item in keys.items() if not hasattr(item.type, "__dataclass_fields__")]
    assert [key for key in flat if f"--{key}" not in text] == []


def test_help_lists_every_name_of_the_registry_and_each_is_where_it_says() -> None:
    whole = " ".join(shown("train", "--help").split()).replace("- ", "-")  # argparse breaks a line at a hyphen
    assert [name for name in (*OPTIMIZERS, *SCHEDULES, *SMALL_TASKS) if name not in whole] == []
    assert all(callable(resolve_name(entry.place)) for entry in (*OPTIMIZERS.values(), *SCHEDULES.values()))
    assert [make_task(RunConfig(task=name)).name for name in SMALL_TASKS] == list(SMALL_TASKS)


@pytest.mark.parametrize(
    ("words", "defaults"),
    [
        (["compare"], ["{'muon': [0.01], 'lion': [0.002]}", "[0, 1, 2, 3]", "600"]),
        (["compare", "--config", "smoke"], ["{'muon': [0.01], 'normsgd': [0.1]}", "20"]),
        (["smoothness"], ["runs/smoothness"]),
        (["compare", "--task", OWN], ["{'muon': [0.01], 'adamw': [0.003]}", "150", "0.0"]),
        (["train", "--task", OWN], ["muon", "0.01", "150", "0.0"]),
    ],
)
def test_help_shows_the_defaults_that_apply(
    words: list[str], defaults: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = " ".join(shown(*words, "--help").split())
    assert [default for default in defaults if f"default: {default})" not in text] == []
    assert list(tmp_path.iterdir()) == []


HOSTILE = {
    "deep brackets": "steps: " + "[" * 600,
    "deep mappings": "rates: " + "{a: " * 600 + "1" + "}" * 600,
    "refers to itself": "rates: &r {muon: *r}",
    "a key twice": "seeds: [0]\nseeds: [1]",
    "a key twice in a list": "grid: [{seed: 1, 'seed': 2}]",
    "seed of 2⁶⁴": f"seeds: [{2**64}]",
    "a date": "run: {steps: 2026-11-21}",
    "a key that is no text": "? [1, 2]\n: 3",
    "a number without end": "run: {steps: " + "9" * 5000 + "}",
    "a null byte": "run: \0",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_a_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    path.write_text(HOSTILE[name], encoding="utf-8")
    for command in ("compare", "train", "sweep"):
        assert len(refused([command, "--config", str(path)], capsys)) < 1500
