"""Whatever stands on the command line or in a config file: it is accepted, or refused in one line with status 2."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autowarm.lab.commands import main
from autowarm.lab.config import CompareConfig, FigureConfig, RunConfig, SweepConfig
from autowarm.lab.config.build import known_keys

CONFIGS: dict[str, type] = {
    "train": RunConfig, "compare": CompareConfig, "sweep": SweepConfig,
    "smoothness": SweepConfig, "figure": FigureConfig,
}  # fmt: skip
# Where a command has understood all that it was given and begins.
BEGINNINGS = ["training.loop.train", "execution.engine.make", "paper.experiments.produce"]  # fmt: skip
ODD: list[Any] = [
    0, -1, 1, 7, 10**30, -(10**30), 0.5, 1e-400, 1e308, float("nan"), float("inf"), True, None, "", " ", "null", "~",
    "muon", "linear", "adaptive", "paper", "cpu", [], {}, [1], [[]], {"a": 1}, {"muon": [0.1]}, {"muon": 1},
    {"muon": []}, {"lion": {"betas": "x"}}, {"a": {"set": 3}}, {"a": {"grid": 3}}, {"a": {"set": {"steps": [1, 2]}}},
    {"a": {"grid": [{"schedule.kind": []}]}}, {"a": None}, "a: b: c", "[", "{", "!!python/name:os", "&a *a", "*a", "%",
    "@x", "\t", "1e3", "0x10", "1_000", "2026-11-21", "12:30:45", "é", "\u2028", "-", "--", "=", "50304x768", "a\nb",
]  # fmt: skip

values = st.one_of(st.sampled_from(ODD), st.integers(), st.floats(), st.text(max_size=8))
keys = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


class Accepted(BaseException):  # no error that a command would explain
    """The command has understood what it was given."""


@pytest.fixture(autouse=True, scope="module")
def _in_an_empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with contextlib.chdir(tmp_path_factory.mktemp("empty")):
        yield


def outcome(words: list[str]) -> int:
    """The status; 0 where the command would begin. Every other is held to a line and to 2."""
    errors = io.StringIO()
    with contextlib.ExitStack() as contexts:
        for place in BEGINNINGS:
            contexts.enter_context(mock.patch(f"autowarm.lab.{place}", side_effect=Accepted))
        contexts.enter_context(contextlib.redirect_stderr(errors))
        contexts.enter_context(contextlib.redirect_stdout(io.StringIO()))
        try:
            status = main(words)
        except Accepted:
            return 0
        except SystemExit as ended:
            status = ended.code or 0
    message = errors.getvalue()
    if status == 0 and not message:
        return 0  # help was asked for
    assert status == 2, (words, status, message)
    assert message.startswith("autowarm: "), message
    assert message.count("\n") == 1, message
    return status


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    command = draw(st.sampled_from(sorted(CONFIGS)))
    known = sorted(known_keys(CONFIGS[command]))
    words = [command]
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.one_of(st.sampled_from(known), st.sampled_from(known), keys))
        value = draw(values)
        text = value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True).strip()
        text = text.removesuffix("...").strip() if not isinstance(value, str) else text
        odd = draw(st.sampled_from(["--help", "-h", "=", "--out", "train"]))
        words += draw(st.sampled_from([[f"--{key}", text], [f"--{key}={text}"], [f"--{key}"], [text], [odd]]))
    return words


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(command_lines())
def test_command_lines(words: list[str]) -> None:
    outcome(words)


nested = st.recursive(
    values, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)), max_leaves=6
)


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes]:
    command = draw(st.sampled_from(sorted(CONFIGS)))
    content: dict[str, Any] = {}
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.one_of(st.sampled_from(sorted(known_keys(CONFIGS[command]))), keys)).split(".")
        inner = content
        for key in path[:-1]:
            inner = inner.setdefault(key, {}) if isinstance(inner.get(key, {}), dict) else {}
        inner[path[-1]] = draw(nested)
    return command, yaml.safe_dump(content, allow_unicode=True).encode()


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(st.one_of(files(), st.tuples(st.sampled_from(sorted(CONFIGS)), st.binary(max_size=60))))
def test_config_files_and_files_that_are_none(given: tuple[str, bytes]) -> None:
    command, content = given
    Path("mine.yaml").write_bytes(content)
    outcome([command, "--config", "mine.yaml"])


def test_the_harness_tells_right_from_wrong() -> None:
    assert outcome(["train", "--steps", "5"]) == 0
    assert outcome(["train", "--steps", "five"]) == 2
