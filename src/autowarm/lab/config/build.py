"""Makes a config from YAML and command-line words: preset, file, dotted overrides, in this order.

jsonargparse converts and checks every value. This module adds suggestions for misspelt keys, and the help.
"""

import argparse
import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args, get_origin

import yaml

from ..errors import LabError, UsageError, nearest
from ..registry import SMALL_TASKS, check, either
from .yaml_files import load_yaml, merged, nested, presets, read_yaml

_Config = TypeVar("_Config")
_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "NoneType": "null",
          "list[int]": "a list of whole numbers", "list[int | float]": "a list of numbers"}  # fmt: skip


class Parser(argparse.ArgumentParser):
    """argparse that raises our UsageError."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog.removeprefix('autowarm ')}: {message}")


def parse(
    argv: Sequence[str],
    config_class: type[_Config],
    command: str,
    about: str,
    *,
    preset: str | None = None,
    defaults: Mapping[str, Any] | None = None,
    positional: str | None = None,
    shown: Sequence[str] = (),
    also: Mapping[str, str] | None = None,
    instead: Mapping[str, str] | None = None,
    own: str | None = None,
) -> _Config:
    """Build a config from the words after a command, whose name is also the folder of its presets.

    Args:
        preset: the preset to use without `--config`.
        defaults: values of nested keys that a file or preset does not set.
        positional: the key that the first word sets if it is not an option.
        shown: the keys that `--help` lists with their description's first sentence; empty for all. `--help-all` lists
            every key with its full description.
        also: the command's other options, which are not keys, and their help texts.
        instead: keys that have no effect because the command sets them itself, each with the key to give instead.
        own: the key of a user's task, which `defaults` name; a file or a word may name none.

    Raises:
        UsageError: a key or a value is wrong. The message is one line and names the nearest key.
    """
    if positional and argv and not argv[0].startswith("-"):
        argv = [f"--{positional}={argv[0]}", *argv[1:]]
    name, words = take(argv, "--config")
    words = _spelt_out(words, config_class)
    parser = _parser(config_class)
    parser.prog, parser.description = f"autowarm {command}", about
    source, values, instead = "", dict(defaults or {}), instead or {}
    try:
        if chosen := name or preset:
            found, path = read_yaml(chosen, command)
            source, values = f"{path}: ", merged(values, nested(found))
        found = leaves(values, config_class, source.removesuffix(": "))
        parser.parse_object(values, defaults=False)  # checks the values, which `set_defaults` does not
        parser.set_defaults(found)
        if {"-h", "--help", "--help-all"} & set(words):
            keys = () if "--help-all" in words else shown or [action.dest for action in parser._actions]
            _print_help(parser, command, positional, keys, also or {})
            raise SystemExit(0)
        source = ""
        for key in (word.split("=")[0].removeprefix("--") for word in words if word.startswith("--")):
            if _kind(key.rstrip("+"), config_class) is None:
                known = {*known_keys(config_class), *(name.removeprefix("--") for name in also or {})}
                raise LabError(f"unknown option --{key}; {_nearest_key(key, known, instead)}")
            if key in instead:
                raise LabError(f"--{key} has no effect here: give --{instead[key]}")
        return _instantiate(parser, parser.parse_args(words), config_class, own)
    except (argparse.ArgumentError, LabError, ValueError, TypeError, RecursionError) as error:
        text = _one_line(error)
        raise UsageError(text if text.startswith(source) else source + text) from None


def _spelt_out(words: Sequence[str], config_class: type) -> list[str]:
    """Rewrite ``--optimizer muon`` as ``--optimizer.name muon``, and likewise for every section with a name or kind."""
    known, found = known_keys(config_class), list(words)

    def is_list(key: str) -> bool:
        kind = _kind(key, config_class)
        return any(get_origin(one) is list for one in (kind, *get_args(kind)))  # also one that may be null

    for i, word in enumerate(words):
        key, given, value = word.partition("=")
        key = key.removeprefix("--")
        value = value if given else "".join(words[i + 1 : i + 2])
        name = next((name for name in (f"{key}.name", f"{key}.kind") if name in known), None)
        if word.startswith("--") and name and re.fullmatch(r"\w[\w.-]*", value):
            found[i] = f"--{name}{given}{value if given else ''}"
        elif word.startswith("--") and is_list(key) and re.match(r"(?!null$)[^[{]", value):
            place = i if given else i + 1
            found[place] = f"--{key}=[{value}]" if given else f"[{value}]"  # as in --seeds 0,1
    return found


def _kind(key: str, config_class: type) -> Any:
    """Return the type of a key, or of an entry of a mapping, such as rates.muon; None for what is neither."""
    known, parent = known_keys(config_class), key.rpartition(".")[0]
    return known[key] if key in known else next(iter(get_args(known.get(parent))[1:]), None)


def _nearest_key(key: str, known: Iterable[str], instead: Mapping[str, str]) -> str:
    """Suggest a known option for an unknown one, such as run.steps for steps."""
    known = [name for name in known if name not in instead]
    for name, other in instead.items():
        if key in name.split(".")[-2:] and key != "optimizer":
            return f"did you mean {other!r}?"
    if key == "optimizer" and "rates" in known:
        return "give each optimizer with its peak rates, such as --rates '{muon: [3e-3]}'"
    section, _, name = key.rpartition(".")
    if f"{key.removesuffix(name)}options" in known and section.endswith("schedule"):
        return f"arguments of AdaptiveWarmup go into --{section}.options, as in --{section}.options '{{{name}: VALUE}}'"
    inside = sorted(name for name in known if name.endswith(f".{key}"))
    return f"did you mean {inside[0]!r}?" if inside else nearest(key, known)


def build(config_class: type[_Config], values: Mapping[str, Any], source: str) -> _Config:
    """Build the config with these keys, nested or dotted, and defaults for all others; errors start with ``source``."""
    parser = _reader(config_class)
    try:
        values = nested(values)
        leaves(values, config_class, source)
        return _instantiate(parser, parser.parse_object(values, defaults=False), config_class)
    except (argparse.ArgumentError, ValueError, TypeError) as error:
        raise LabError(f"{source}: {_one_line(error)}") from None


def known_keys(config_class: Any) -> dict[str, Any]:
    """Return the type of every key of a config class by its dotted path; a section is a key, too."""
    keys: dict[str, Any] = {}
    for item in dataclasses.fields(config_class):
        keys[item.name] = item.type
        if dataclasses.is_dataclass(item.type):
            keys |= {f"{item.name}.{key}": kind for key, kind in known_keys(item.type).items()}
    return keys


def leaves(values: Any, config_class: Any, source: str, prefix: str = "") -> dict[str, Any]:
    """Convert nested keys, which must be known, to dotted ones. A value that is itself a mapping stays whole."""
    if not isinstance(values, Mapping):
        what = f"{prefix.rstrip('.')!r} must hold" if prefix else "expected"
        raise LabError(f"{source}: {what} keys and values, got {values!r}")
    known = known_keys(config_class)
    found: dict[str, Any] = {}
    for key, value in values.items():
        name, _, rest = str(key).partition(".")
        if name not in known:
            near = nearest(prefix + name, [prefix + other for other in known])
            raise LabError(f"{source}: unknown key {prefix + name!r}; {near}")
        if dataclasses.is_dataclass(known[name]):
            found |= leaves({rest: value} if rest else value, known[name], source, f"{prefix}{name}.")
        else:
            found[prefix + str(key)] = value
    return found


def plain(value: Any) -> Any:
    """Convert mappings and sequences to dicts and lists, and NumPy's numbers to Python's."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else value


def take(argv: Sequence[str], option: str) -> tuple[str | None, list[str]]:
    """Return the value of an option that is not a config key (the last one if repeated), and the other words."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(option, dest="value")
    try:
        found, rest = parser.parse_known_args(list(argv))
    except (argparse.ArgumentError, SystemExit):
        raise UsageError(f"{option} needs a value") from None
    return found.value, rest


def take_task(argv: Sequence[str], key: str = "task") -> tuple[str | None, list[str]]:
    """Return the place FILE.py:NAME of the user's own task and the other words; a task of the lab stays a key."""
    place, rest = take(argv, "--task")
    if place is None:
        place, rest = take(argv, f"--{key}")
    own = place is None or ":" in place or place.endswith(".py")
    return (place, rest) if own else (None, [f"--{key}", str(place), *rest])


def _parser(config_class: type[Any]) -> Any:
    import jsonargparse

    # By default jsonargparse would import a, and may call b, for a value such as {class_path: a.b}.
    jsonargparse.set_parsing_settings(instantiate_subclass_spec_in_any=False, import_path_denylist=["*"])
    jsonargparse.set_loader("autowarm", load_yaml, exceptions=(yaml.YAMLError,))
    parser = jsonargparse.ArgumentParser(exit_on_error=False, parser_mode="autowarm", add_help=False)
    parser.add_class_arguments(config_class)
    return parser


# Making a parser takes ten times as long as reading one run with it, and a sweep may have hundreds of runs.
_reader: Any = cache(_parser)


def _instantiate(parser: Any, parsed: Any, config_class: type[_Config], own: str | None = None) -> _Config:
    for key, value in parsed.items():
        if isinstance(value, str) and value.startswith("~/"):  # from a file
            parsed[key] = str(Path(value).expanduser())
    config = config_class(**vars(parser.instantiate(parsed)))
    run: Any = getattr(config, "run", config)
    if getattr(run, "is_own_task", False) and run.task != own:  # a user's task is code, which --task alone may name
        check("task", run.task, SMALL_TASKS, "task")
    return config


def _print_help(
    parser: Any, command: str, positional: str | None, shown: Sequence[str], also: Mapping[str, str]
) -> None:
    """Print the keys in ``shown`` with a line or two each; if it is empty, argparse's own help for every key."""
    names = ", ".join(presets(command))
    also = {**also, "--config": f"a YAML file{names and f', or a preset: {names}'}"}
    usage = f"autowarm {command} {f'[{positional.upper()}] ' if positional else ''}[--KEY VALUE ...]"
    if not shown:
        for option, about in also.items():
            parser.add_argument(option, help=about)
        parser.usage = usage
        parser.print_help()
        return

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = {**also, "--help-all": "every option, with its type and full description"}
    helps = {action.dest: action.help for action in parser._actions}
    for key in shown:
        default = parser.get_default(key)
        first = re.split(r"[.;] ", " ".join(helps[key].split()).removesuffix("."))[0]
        rows[f"--{key}"] = first if default in (None, "", [], {}) else f"{first} (default: {default})"
    table = Table.grid(padding=(0, 2))
    for option, about in rows.items():
        table.add_row(Text(f"  {option}"), Text(about))
    console = Console(highlight=False)
    console.print(Text(f"usage: {usage}\n\n{parser.description}\n"))
    console.print(table)


def _one_line(error: Exception) -> str:
    """Return the message in one line, without Python's spelling of types."""
    text = " ".join(str(error).split())
    if isinstance(error, RecursionError):
        text = "a value is too deeply nested"
    text = re.sub(r"<class '(\w+)'>", r"\1", text).replace("typing.", "").replace("Parser key", "key")
    if found := re.search(r'key "([\w.]+)": Expected a Literal(\[.*?\])\. Got value: (\S+)', text):
        key, choices, given = found.groups()
        return f"{key}: unknown {given!r}; {nearest(given, json.loads(choices.replace(chr(39), chr(34))))}"
    if found := re.search(r'key "([\w.]+)": Does not validate .*?: \[(.*?)\] Errors: .*Given value: (.*)$', text):
        key, kinds, given = found.groups()
        wanted = [_KINDS.get(kind, kind) for kind in re.findall(r"(\w+(?:\[.*?\])?)(?:, |$)", kinds)]
        return f"{key}: expected {either(wanted).replace('Literal', 'one of ')}, got {given}"
    if found := re.search(r'key "([\w.]+)": (Unable to load config|Importing)', text):
        return f"{found[1]} is a group of options: give them one by one, as --{found[1]}.KEY VALUE"
    return text
