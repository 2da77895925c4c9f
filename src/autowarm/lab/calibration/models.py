"""Builds models by name, without memory for their weights."""

import os

import torch
from torch import nn

from ..config import ModelConfig, UsageError, nearest
from ..config.build import build
from ..config.yaml_files import nested, presets, read_yaml
from ..tasks.models import llama, timms_word_on


def on_meta(name: str) -> nn.Module:
    """Build the model of this name without memory for its weights; UsageError lists the places that were searched."""
    with torch.device("meta"):
        if name.startswith("timm:"):
            timms_name = name.removeprefix("timm:")
            timms_word_on(timms_name)
            import timm

            return timm.create_model(timms_name)
        if name.endswith((".yaml", ".yml")) or name in presets():
            values, path = read_yaml(name)
            model = nested(values.get("run") or values.get("base") or values).get("model")
            if model is None:
                raise UsageError(f"{path} describes no model")
            config = build(ModelConfig, model, str(path))
            if config.name != "llama":
                raise UsageError(f"{path} describes a {config.name}; for image models give timm:NAME")
            return llama(config, seed=0)
        return _transformers(name)


def _transformers(name: str) -> nn.Module:
    import transformers
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    types = transformers.CONFIG_MAPPING.keys()
    try:
        described = AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        if os.path.exists(name):
            raise UsageError(f"{name}: {' '.join(str(error).split())}") from None
        if name not in types:
            raise UsageError(
                f"no model {name!r}: there is no such file, preset, cached transformers model or model type "
                f"({nearest(name, types, 'such as gpt2')}). "
                "Give --shapes, or set HF_HUB_OFFLINE=0 to let the configuration be fetched"
            ) from None
        described = AutoConfig.for_model(name)
    for architecture in described.architectures or ():
        if model_class := getattr(transformers, architecture, None):
            return model_class(described)
    if type(described) in AutoModelForCausalLM._model_mapping:
        return AutoModelForCausalLM.from_config(described)
    return AutoModel.from_config(described)


def outputs(model: nn.Module) -> int | None:
    """Return the number of classes or tokens that a model outputs; None if it does not name its output layer."""
    for ask in ("get_output_embeddings", "get_classifier"):
        method = getattr(model, ask, None)
        weight = getattr(method(), "weight", None) if callable(method) else None
        if weight is not None:
            return int(weight.shape[0])
    return None
