"""From the words of a command to a config: preset, file, dotted overrides. Imports neither torch nor transformers."""

import dataclasses
import re
from typing import Any, TypeVar

from .config import PRESETS, LabError, check_keys, known_keys, nearest, read_yaml
from .grid import SweepConfig

__all__ = ["UsageError", "parse", "take", "yaml_of"]

_Config = TypeVar("_Config")
_MAPPINGS = {"rates", "steps", "options", "windows", "optimizer.options", "run.optimizer.options", "base", "cells",
             "override"}  # fmt: skip


class UsageError(LabError):
    """The command line or a config file is wrong."""


def parse(
    argv: list[str], config_class: type[_Config], command: str, about: str, preset: str | None = None, extra: str = ""
) -> _Config:
    """A config from preset, `--config` and dotted overrides, in this order.

    Raises:
        UsageError: a key or a value is wrong; the message is one line and names the nearest key.
        SystemExit: help was asked for.
    """
    import jsonargparse

    # A value is a value: without this, {class_path: a.b} in one imports a, and may call b.
    jsonargparse.set_parsing_settings(instantiate_subclass_spec_in_any=False, import_path_denylist=["*"])
    name, argv = take(argv, "--config")
    parser = jsonargparse.ArgumentParser(prog=f"autowarm {command}", description=about, exit_on_error=False)
    pattern = "*/*.yaml" if config_class is SweepConfig else "*.yaml"
    presets = ", ".join(sorted(path.relative_to(PRESETS).with_suffix("").as_posix() for path in PRESETS.glob(pattern)))
    parser.add_argument("--config", metavar="NAME|PATH", help=f"a YAML file, or a preset: {presets}")
    parser.add_class_arguments(config_class)
    parser.epilog = extra or None
    source = ""
    try:
        if chosen := name or preset:
            values, path = read_yaml(chosen)
            source = str(path)
            check_keys(values, config_class, source)
            parser.parse_object(values)  # defaults are taken unchecked, so the file is checked on its own
            parser.set_defaults(_leaves(values, config_class))
        source = ""
        for word in argv:
            key = word.split("=")[0].removeprefix("--")
            if word.startswith("--") and key != "help" and not _known(key, config_class):
                raise LabError(f"unknown option --{key}; {nearest(key, known_keys(config_class))}")
        parsed = parser.parse_args(argv)
        parsed.pop("config", None)
        return config_class(**vars(parser.instantiate(parsed)))
    except (jsonargparse.ArgumentError, LabError, ValueError, TypeError) as error:
        text = _one_line(error)
        raise UsageError(text if text.startswith(source) else f"{source}: {text}") from None


def take(argv: list[str], option: str) -> tuple[str | None, list[str]]:
    """The value of an option (the last, if it is given twice) and the words without it."""
    value, rest, words = None, [], iter(argv)
    for word in words:
        if word == option:
            value = next(words, None)
            if value is None:
                raise UsageError(f"{option} needs a value")
        elif word.startswith(option + "="):
            value = word.split("=", 1)[1]
        else:
            rest.append(word)
    return value, rest


def _leaves(values: dict[str, Any], config_class: type, prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted paths; a value that is a mapping itself, such as the rates, stays whole."""
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        kind = config_class.__annotations__[key]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            leaves |= _leaves(value, kind, f"{prefix}{key}.")
        else:
            leaves[prefix + key] = value
    return leaves


def _known(key: str, config_class: type) -> bool:
    """Whether an option names a key, or an entry of a key that is a mapping, such as --rates.muon."""
    known = known_keys(config_class)
    return key.rstrip("+") in known or key.rpartition(".")[0] in _MAPPINGS


def _one_line(error: Exception) -> str:
    """A message without line breaks and without Python's spelling of types."""
    text = " ".join(str(error).split())
    return re.sub(r"<class '(\w+)'>", r"\1", text).replace("typing.", "").replace("Parser key", "key")


def yaml_of(option: str, text: str | None) -> Any:
    """The value of an option that is not a plain word."""
    import yaml

    try:
        return None if text is None else yaml.safe_load(text)
    except yaml.YAMLError:
        raise UsageError(f"{option}: {text!r} is not valid YAML") from None
