"""Reads config files and presets: plain YAML, and files that extend others."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ..errors import LabError, nearest, require

_PRESETS = Path(__file__).parent / "presets"
SCALES = ("tiny", "horizon", "paper")  # at which the presets in a folder `scaled` are made


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
        raise LabError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
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
    """Read plain values from YAML; dates stay text."""
    try:
        return _Loader(text).get_single_data()
    except (RecursionError, OverflowError) as error:
        raise yaml.YAMLError(f"it cannot be read ({type(error).__name__})") from None


class _Loader(yaml.SafeLoader):
    """Reads YAML's plain types, but no dates, which no key takes, and reads 1e-3 as a number."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two nested mappings; ``over`` takes precedence."""
    both = {key: merged(under[key], value) if isinstance(value, Mapping) and isinstance(under.get(key), Mapping)
            else value for key, value in over.items()}  # fmt: skip
    return {**under, **both}


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert dotted keys to nested ones. If a key has two values, the later one counts.

    Example:
        >>> nested({"model": {"layers": 1}, "model.width": 8, "steps": 3})
        {'model': {'layers': 1, 'width': 8}, 'steps': 3}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        for part in reversed(str(key).split(".")[1:]):
            value = {part: value}
        found = merged(found, {str(key).split(".")[0]: value})
    return found


@cache
def presets(command: str = "*") -> dict[str, Path]:
    """Return the presets of a command, or of all commands, by name."""
    paths = [(path, str(path.relative_to(folder).with_suffix("")))
             for folder in sorted(_PRESETS.glob(command)) for path in sorted(folder.rglob("*.yaml"))]  # fmt: skip
    return {name.replace("scaled", scale): path for path, name in paths for scale in SCALES}
