"""New models of every family in timm, torchvision and transformers, small ones where there are."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

FILLS = {"uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_"}
LARGEST = 15_000_000  # weights of a new model of transformers, whose config is narrowed until it has no more
# What models are called, smallest first, and families that have large ones only but any number of layers.
SIZES = ("test_", "atto", "femto", "pico", "nano", "xxs", "xxtiny", "xx_small", "_ti", "tiny", "mini", "_xs", "_t0",
         "_b0", "_s0", "_m0", "_m1", "050", "_t", "400mf", "small", "18", "_s", "11", "v5_base")  # fmt: skip
DEEP = ("beit_base", "deepseek_vit", "gemma4_vit", "naflexvit", "qwen3_vit", "samvit_base")


def by_size(name: str) -> int:
    return next((place for place, word in enumerate(SIZES) if word in name), len(SIZES))


class Unfilled(TorchFunctionMode):
    """Leaves new weights unfilled: filling them on the meta device does nothing, and takes most of the time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in FILLS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def timm_models(part: slice) -> Iterator[tuple[str, nn.Module]]:
    import timm

    families: dict[str, list[str]] = {}
    for name in timm.list_models():
        families.setdefault(timm.models._registry._model_to_module[name], []).append(name)
    for family, names in [*families.items()][part]:
        least = min(names, key=by_size)
        torch.manual_seed(0)
        yield f"timm {family}", timm.create_model(least, **({"depth": 2} if least.startswith(DEEP) else {}))


def torchvision_models(part: slice) -> Iterator[tuple[str, nn.Module]]:
    import torchvision  # type: ignore[import-untyped]

    families: dict[str, list[str]] = {}
    for name in torchvision.models.list_models():
        families.setdefault(torchvision.models.get_model_builder(name).__module__, []).append(name)
    for family, names in [*families.items()][part]:
        if "quantiz" not in family:
            around = {"weights_backbone": None} if "detection" in family or "segmentation" in family else {}
            torch.manual_seed(0)
            yield family, torchvision.models.get_model(min(names, key=by_size), weights=None, **around)


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


def transformers_models(part: slice) -> Iterator[tuple[str, nn.Module]]:
    """Every type whose default config builds a base model."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    for kind, names in [*MODEL_MAPPING_NAMES.items()][part]:
        kind_of_model = getattr(transformers, names if isinstance(names, str) else names[0], None)  # or not exported
        for by in (4, 2, 8, 1, 16):
            try:
                config = transformers.AutoConfig.for_model(kind)
                narrow(config, by)
                with torch.device("meta"):
                    if sum(p.numel() for p in kind_of_model(config).parameters()) > LARGEST:
                        continue
                torch.manual_seed(0)
                model = kind_of_model(config).float()
            except Exception:  # widths that do not fit, packages that are missing
                continue
            yield f"transformers {kind}", model
            break


NEW = {"timm": timm_models, "torchvision": torchvision_models, "transformers": transformers_models}
