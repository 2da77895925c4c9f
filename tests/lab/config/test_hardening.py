"""What was made to exhaust or confuse the reader of configs: one line, status 2, at once."""

import random
import time
from pathlib import Path

import pytest
import yaml

from autowarm.lab.commands import main
from autowarm.lab.config.yaml_files import load_yaml

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
HOSTILE = {
    "deep brackets": "steps: " + "[" * 5000,
    "deep lists": "steps: " + "[" * 2000 + "]" * 2000,
    "deep mappings": "rates: " + "{a: " * 1000 + "1" + "}" * 1000,
    "refers to itself": "rates: &r {muon: *r}",
    "refers to itself in a list": "warmups: &w [0, *w]",
    "refers to itself by merging": "run: &r {steps: 3, <<: *r}",
    "alias bomb": BOMB,
    "alias bomb of mappings": "a: &a {k: v}\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} {{p: *{chr(97 + n)}, q: *{chr(97 + n)}}}\n" for n in range(24)
    ),
    "merge bomb": "a: &a {k: v}\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} {{<<: [*{chr(97 + n)}, *{chr(97 + n)}]}}\n" for n in range(24)
    ),
    "seed of 2⁶⁴": f"seeds: [{2**64}]",
    "a date": "run: {steps: 2026-11-21}",
    "a key that is no text": "? [1, 2]\n: 3",
    "a number without end": "run: {steps: " + "9" * 5000 + "}",
    "a tag": "run: !!python/object/apply:os.system [true]",
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
        assert main([command, "--config", str(path)]) == 2
        said = capsys.readouterr().err
        assert said.startswith("autowarm: ")
        assert said.count("\n") == 1
        assert len(said) < 1500


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "[" * 200 + "]" * 200, BOMB])
def test_yaml_that_would_exhaust_its_reader_is_refused_for_that(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="nested|more than"):
        load_yaml(text)


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK", "LOCAL_RANK"])
def test_a_variable_of_torchrun_that_is_no_number(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, "abc")
    assert main(["train", "--steps", "2"]) == 2
    assert f"{name} must be a number, got 'abc'" in capsys.readouterr().err


def bomb(draw: random.Random) -> str:
    """Anchors that name earlier anchors, several times each, in lists, mappings and merges of random width."""
    lines = ["a0: &a0 {k: v}"]
    for n in range(1, draw.randint(2, 60)):
        names = [f"*a{draw.randint(max(0, n - 3), n - 1)}" for _ in range(draw.randint(1, 9))]
        items = ", ".join(names)
        values = ", ".join(f"k{index}: {name}" for index, name in enumerate(names))
        lines.append(f"a{n}: &a{n} " + draw.choice([f"[{items}]", f"{{{values}}}", f"{{<<: [{items}]}}"]))
    return "\n".join(lines)


def size(value: object) -> int:
    """Values once the aliases are expanded, counted up to a limit."""
    total, todo = 0, [value]
    while todo and total <= 200_000:
        part = todo.pop()
        total += 1
        todo += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return total


def test_random_bombs_are_small_or_refused() -> None:
    refused, began = 0, time.process_time()
    for seed in range(150):
        try:
            assert size(load_yaml(bomb(random.Random(seed)))) <= 100_000
        except yaml.YAMLError:
            refused += 1
    assert 20 < refused < 140
    assert time.process_time() - began < 300  # a hang, on any machine


def test_what_nobody_foresaw_is_a_line_with_the_traceback_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:

    from autowarm.lab.commands import report

    def surprise(words: list[str]) -> int:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(report, "run", surprise)
    assert main(["report"]) == 1
    (log,) = tmp_path.glob("autowarm-*.log")
    assert capsys.readouterr().err == f"autowarm: RuntimeError: first line (traceback in {log})\n"
    assert "second line" in log.read_text()
    assert "in surprise" in log.read_text()
