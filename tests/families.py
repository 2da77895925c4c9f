"""New models of every family in timm, torchvision and transformers, small ones where there are."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

FILLS = {"uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_"}
LARGEST = 30_000_000  # weights of a new model: smaller siblings are preferred, wider configs are narrowed


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


class Unfilled(TorchFunctionMode):
    """Leaves new weights unfilled: filling them on the meta device does nothing, and takes most of the time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in FILLS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def smallest(names: list[str], build: Callable[[str], nn.Module]) -> str | None:
    """The first name whose model is small, or the smallest of all."""
    sizes: dict[str, int] = {}
    for name in names:
        try:
            with torch.device("meta"), Unfilled():
                sizes[name] = size(build(name))
        except Exception:  # some compute their sizes with tensors
            continue
        if sizes[name] <= LARGEST:
            return name
    return min(sizes, key=lambda name: sizes[name]) if sizes else None


def timm_models() -> Iterator[tuple[str, nn.Module]]:
    import timm

    families: dict[str, list[str]] = {}
    for name in timm.list_models():
        families.setdefault(timm.models._registry._model_to_module[name], []).append(name)
    for family, names in families.items():
        if least := smallest(names, timm.create_model):
            torch.manual_seed(0)
            yield f"timm {family}", timm.create_model(least)


def torchvision_models() -> Iterator[tuple[str, nn.Module]]:
    import torchvision  # type: ignore[import-untyped]

    def family_of(name: str) -> str:
        return torchvision.models.get_model_builder(name).__module__

    def build(name: str) -> nn.Module:
        around = "detection" in family_of(name) or "segmentation" in family_of(name)
        return torchvision.models.get_model(name, weights=None, **({"weights_backbone": None} if around else {}))

    families: dict[str, list[str]] = {}
    for name in torchvision.models.list_models():
        if "quantiz" not in family_of(name):
            families.setdefault(family_of(name), []).append(name)
    for family, names in families.items():
        torch.manual_seed(0)
        yield f"torchvision {family.removeprefix('torchvision.models.')}", build(smallest(names, build) or names[0])


def narrow(config: Any, by: int) -> None:
    """Divide a config's widths, in place, with those of its parts."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            narrow(value, by)
        elif isinstance(value, bool) or not isinstance(value, int):
            continue
        elif "vocab" in name:
            setattr(config, name, min(value, 1000))
        elif ("layer" in name and value > 2) or name in ("depth", "n_block"):
            setattr(config, name, 2)
        elif "expert" in name and value > 4 and "per_tok" not in name:
            setattr(config, name, 4)
        elif value >= 256 and value % by == 0 and not name.endswith("_id") and "position" not in name:
            setattr(config, name, value // by)


def transformers_models() -> Iterator[tuple[str, nn.Module]]:
    """Every type whose default config builds a base model, narrowed until it is small."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    for kind, names in MODEL_MAPPING_NAMES.items():
        name = names if isinstance(names, str) else names[0]
        for by in (4, 2, 8, 1, 16):
            try:
                config = transformers.AutoConfig.for_model(kind)
                narrow(config, by)
                kind_of_model = getattr(transformers, name)
                with torch.device("meta"):
                    if size(kind_of_model(config)) > LARGEST / 2:
                        continue
                torch.manual_seed(0)
                model = kind_of_model(config).float()
            except Exception:  # widths that do not fit, packages that are missing
                continue
            yield f"transformers {kind}", model
            break


NEW = {"timm": timm_models, "torchvision": torchvision_models, "transformers": transformers_models}
