"""Makes a config from YAML and command-line words: preset, file, dotted overrides, in this order.

A file or a preset may extend another. jsonargparse converts and checks every value. This module says in plain words
what is wrong, suggests keys that are meant, and prints the help.
"""

import argparse
import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

import yaml

from ..errors import LabError, UsageError, nearest, require
from ..registry import SMALL_TASKS, check, either

_PRESETS = Path(__file__).parent / "presets"
SCALES = ("tiny", "horizon", "paper")  # at which the presets in a folder `scaled` are made
_Config = TypeVar("_Config")
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null",
          list[int]: "a list of whole numbers", list[float]: "a list of numbers", list[str]: "a list of names",
          list[int | float]: "a list of numbers", list[dict[str, Any]]: "a list of mappings",
          dict[str, Any]: "keys and values"}  # fmt: skip
# What people type out of habit, and the keys that they mean, of a comparison or of a run.
_MEANT = {"optimizers": "rates", "seed": "seeds", "lr": "rates optimizer.lr", "learning_rate": "rates optimizer.lr",
          "epochs": "run.steps steps", "max_warmup": "run.schedule.options schedule.options"}  # fmt: skip
_LONGEST = 100  # letters of a wrong value in a message


class Parser(argparse.ArgumentParser):
    """argparse that raises our UsageError, and reads --max_warmup as --max-warmup."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        return super().parse_args([re.sub("^--[a-z_]+", lambda name: name[0].replace("_", "-"), x) for x in args])

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog.removeprefix('autowarm ')}: {message}")


def parse(
    argv: Sequence[str], config_class: type[_Config], command: str, about: str, *, preset: str | None = None,
    defaults: Mapping[str, Any] | None = None, positional: str | None = None, also: Mapping[str, str] | None = None,
    own: str | None = None,
) -> _Config:  # fmt: skip
    """Build a config from the words after a command, whose name is also the folder of its presets.

    The preset is for want of `--config`, the defaults are of keys that neither sets. The first word may be the value of
    the `positional` key. Other options of the command, which are not keys, have their help texts in `also`. A file or a
    word may name no task of a user's; `own` is the key of one that `defaults` name.
    """
    usage = f"autowarm {command} {f'[{positional.upper()}] ' if positional else ''}[--KEY VALUE ...]"
    if positional and argv and not argv[0].startswith("-"):
        argv = [f"--{positional}={argv[0]}", *argv[1:]]
    name, words = take(argv, "--config")
    names, values, source = ", ".join(presets(command)), dict(defaults or {}), ""
    also = {**(also or {}), "--config": f"a YAML file{names and f', or a preset: {names}'}"}
    try:
        if chosen := name or preset:
            content, path = read_yaml(chosen, command)
            values, source = merged(values, nested(content)), str(path)
        flat = leaves(values, config_class, source)
        converted(flat, config_class, source)
        if {"-h", "--help"} & set(words):
            reader = _reader.__wrapped__(config_class)
            reader.usage, reader.description = usage, about
            reader.set_defaults(flat)
            for option, text in also.items():
                reader.add_argument(option, help=text, default=argparse.SUPPRESS)
            reader.print_help()
            raise SystemExit(0)
        _read_words(words, config_class, flat, also)
        return build(config_class, flat, "", own)
    except (LabError, ValueError, TypeError, yaml.YAMLError) as error:
        raise UsageError(" ".join(str(error).split())) from None


def _read_words(words: Iterable[str], config_class: type, flat: dict[str, Any], also: Iterable[str]) -> None:
    """Enter the value of each option by its dotted key. Text stays text, which jsonargparse reads as the key's type.

    A section with a name or a kind may be given by it, as in ``--optimizer muon``.
    """
    known, words = known_keys(config_class), iter(words)
    for word in words:
        key, equals, text = word.partition("=")
        if not word.startswith("--"):
            raise LabError(f"{word!r} belongs to no option: give each as --KEY VALUE")
        value, key = text if equals else next(words, None), key.removeprefix("--")
        key = under if (under := key.replace("-", "_")) in known else key  # --batch-size is --batch_size
        by_name = next((name for name in (f"{key}.name", f"{key}.kind") if name in known), None)
        if by_name and re.fullmatch(r"\w[\w.-]*", value or "a-name"):
            key = by_name
        parent, _, name = key.rpartition(".")
        # Of a key, or of an entry of a mapping, such as rates.muon.
        kind = known[key] if key in known else next(iter(get_args(known.get(parent))[1:]), None)
        if kind is None:
            near = _nearest_key(key, {*known, *(option.removeprefix("--") for option in also)})
            raise LabError(f"unknown option --{key}{'' if value is None else f', given {_short(value)}'}; {near}")
        if value is None or (value.startswith("--") and not equals):
            raise LabError(f"--{key} needs a value: {_wanted(kind)}")
        if dataclasses.is_dataclass(kind):
            flat |= leaves(load_yaml(value), kind, f"--{key}", f"{key}.")
        elif key in known:
            flat[key] = value
        else:  # an entry of a mapping
            entries = flat.get(parent, _reader(config_class).get_default(parent)) or {}
            flat[parent] = {**(load_yaml(entries) if isinstance(entries, str) else entries), name: load_yaml(value)}


def _nearest_key(key: str, known: Iterable[str]) -> str:
    """Suggest a known option for an unknown one, such as run.steps for steps."""
    section, _, name = key.rpartition(".")
    if f"{key.removesuffix(name)}options" in known and section.endswith("schedule"):
        return f"arguments of AdaptiveWarmup go into --{section}.options, as in --{section}.options '{{{name}: VALUE}}'"
    inside = [name for name in _MEANT.get(key, "").split() if name in known]
    inside += sorted(name for name in known if name.endswith(f".{key}"))
    return nearest(inside[0] if inside else key, known, "--config takes a preset, and --help lists the options", "--")


def build(config_class: type[_Config], values: Mapping[str, Any], source: str, own: str | None = None) -> _Config:
    """Build the config with these keys, nested or dotted, and defaults for all others; errors start with ``source``."""
    parsed = converted(leaves(nested(values), config_class, source), config_class, source)
    for key, value in parsed.items():
        if isinstance(value, str) and value.startswith("~/"):  # from a file
            parsed[key] = str(Path(value).expanduser())
    kind: Any = config_class
    try:
        config: _Config = kind(**vars(_reader(kind).instantiate(parsed)))
        run: Any = getattr(config, "run", config)
        if getattr(run, "is_own_task", False) and run.task != own:  # a user's task is code: --task alone may name it
            check("task", run.task, SMALL_TASKS, "task")
    except (argparse.ArgumentError, ValueError, TypeError) as error:
        raise LabError(f"{source}{source and ': '}{' '.join(str(error).split())}") from None
    return config


def converted(flat: Mapping[str, Any], config_class: type, source: str) -> Any:
    """Convert values by dotted key to their types; LabError if one cannot be."""
    known = known_keys(config_class)
    for key, value in flat.items():
        if value is None and type(None) not in get_args(known.get(key, None | str)):
            raise LabError(f"{source}{source and ': '}{key}: expected {_wanted(known[key])}, got null")
    try:
        return _reader(config_class).parse_object(nested(flat), defaults=False)
    except (argparse.ArgumentError, ValueError, TypeError, RecursionError) as error:
        text = "a value is too deeply nested" if isinstance(error, RecursionError) else " ".join(str(error).split())
        if (named := re.search(r'key "([\w.]+)"', text)) and (key := named[1]) in flat:
            text = f"{key}: expected {_wanted(known[key])}, got {_short(flat[key])}"
            if get_origin(known[key]) is Literal:
                text = f"{key}: unknown {_short(flat[key])}; {nearest(str(flat[key]), get_args(known[key]))}"
        raise LabError(f"{source}{source and ': '}{text}") from None


def _wanted(kind: Any) -> str:
    """Say in words what a key of this type takes."""
    inner = get_args(kind)
    if kind in _KINDS or dataclasses.is_dataclass(kind):
        return _KINDS.get(kind, "keys and values")
    if get_origin(kind) is Literal:
        return f"one of {', '.join(inner)}"
    return f"keys, each with {_wanted(inner[1])}" if get_origin(kind) is dict else either(map(_wanted, inner))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


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
        what = f"{prefix.rstrip('.')!r} is a group of options and must hold" if prefix else "expected"
        raise LabError(f"{source}: {what} keys and values, got {values!r}")
    known = known_keys(config_class)
    dotted: dict[str, Any] = {}
    for key, value in values.items():
        name, _, rest = str(key).partition(".")
        if name not in known:
            near = nearest(prefix + name, [prefix + other for other in known])
            raise LabError(f"{source}: unknown key {prefix + name!r}; {near}")
        if dataclasses.is_dataclass(known[name]):
            dotted |= leaves({rest: value} if rest else value, known[name], source, f"{prefix}{name}.")
        else:
            dotted[prefix + str(key)] = value
    return dotted


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
        parsed, others = parser.parse_known_args(list(argv))
    except (argparse.ArgumentError, SystemExit):
        raise UsageError(f"{option} needs a value") from None
    return parsed.value, others


def take_task(argv: Sequence[str], key: str = "task") -> tuple[str | None, list[str]]:
    """Return the place FILE.py:NAME of the user's own task and the other words; a task of the lab stays a key."""
    place, others = take(argv, "--task")
    if place is None:
        place, others = take(argv, f"--{key}")
    if place is None or (":" not in place and not place.endswith(".py")):
        return None, others if place is None else [f"--{key}", place, *others]
    if not (file := Path(place.rpartition(":")[0] or place)).is_file():  # before anything is loaded
        raise UsageError(f"--task {place}: no such file: {file}; give FILE.py:NAME")
    return place, others


@cache
def _reader(config_class: Any) -> Any:
    """Make a reader, which takes ten times as long as reading one run with it: a sweep may have hundreds of runs."""
    import jsonargparse

    # By default jsonargparse would import a, and may call b, for a value such as {class_path: a.b}.
    jsonargparse.set_parsing_settings(instantiate_subclass_spec_in_any=False, import_path_denylist=["*"])
    jsonargparse.set_loader("autowarm", load_yaml, exceptions=(yaml.YAMLError,))
    sections = {key for key, kind in known_keys(config_class).items() if dataclasses.is_dataclass(kind)}
    reader = jsonargparse.ArgumentParser(exit_on_error=False, parser_mode="autowarm", add_help=False)
    reader.add_class_arguments(config_class)
    for action in reader._actions:  # in help: no --KEY+, and no section, which would be said to be a file
        action.option_strings = action.option_strings[:1]
        if action.dest in sections:
            action.help = argparse.SUPPRESS
    return reader


def read_yaml(name: str, command: str = "*", extending: tuple[str, ...] = ()) -> tuple[dict[str, Any], Path]:
    """Read a config file by path or a preset of a command by name, and merge it over the file that it `extends`.

    In SCALE/NAME, what the file's `scales` hold for SCALE is merged over the rest, and `extends` names a preset of the
    same scale.
    """
    require(isinstance(name, str), f"extends names one file or preset, got {name!r}")
    path = Path(name)
    if not path.is_file():
        known = presets(command)
        if name not in known:
            raise LabError(f"--config {name}: no such file and no such preset; {nearest(name, known)}")
        path = known[name]
    require(name not in extending, f"{path} extends itself")
    try:
        values = load_yaml(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, ValueError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        place = f"{path}, line {mark.line + 1}" if mark else path
        raise LabError(f"{place}: not valid YAML: {' '.join(str(problem).split())}") from None
    if not isinstance(values, dict):
        raise LabError(f"{path}: expected keys and values, got {type(values).__name__}")
    scale = path.parent.name == "scaled" and name.partition("/")[0]
    if scale:
        part = values.pop("scales")[scale]
        values = part if "extends" in part else merged(values, part)  # which holds the rest already
    values.pop("lists", None)  # a place for values that the file's own anchors name
    if parent := values.pop("extends", None):
        parent = f"{scale}/{parent}" if scale and "/" not in parent else parent
        values = merged(read_yaml(parent, extending=(*extending, name))[0], values)
    return values, path


def load_yaml(text: str) -> Any:
    """Read plain values from YAML; dates stay text. A key may stand only once in a mapping."""
    try:
        return _Loader(text).get_single_data()
    except (RecursionError, OverflowError) as error:
        raise yaml.YAMLError(f"it cannot be read ({type(error).__name__})") from None


class _Loader(yaml.SafeLoader):
    """Reads YAML's plain types, but no dates, which no key takes, and reads 1e-3 as a number."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := [name for name, count in names.items() if count > 1]:
            line = node.start_mark.line + 1
            raise yaml.YAMLError(f"the key {twice[0]!r} stands twice in the mapping of line {line}")
        return node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two nested mappings; ``over`` takes precedence."""
    inner = {key: merged(under[key], value) for key, value in over.items()
             if isinstance(value, Mapping) and isinstance(under.get(key), Mapping)}  # fmt: skip
    return {**under, **over, **inner}


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert dotted keys to nested ones. If a key has two values, the later one counts.

    Example:
        >>> nested({"model": {"layers": 1}, "model.width": 8, "steps": 3})
        {'model': {'layers': 1, 'width': 8}, 'steps': 3}
    """
    tree: dict[str, Any] = {}
    for key, value in values.items():
        for part in reversed(str(key).split(".")):
            value = {part: value}
        tree = merged(tree, value)
    return tree


@cache
def presets(command: str = "*") -> dict[str, Path]:
    paths = [(path, str(path.relative_to(folder).with_suffix("")))
             for folder in sorted(_PRESETS.glob(command)) for path in sorted(folder.rglob("*.yaml"))]  # fmt: skip
    return {name.replace("scaled", scale): path for path, name in paths for scale in SCALES}
