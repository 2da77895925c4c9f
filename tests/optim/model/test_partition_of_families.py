"""Where the tensors of every family of timm, torchvision and transformers go: a table, made anew and compared.

    python tests/optim/model/test_partition_of_families.py    # writes the table again, to read its difference

A line is a family's first model, and its numbers of matrices, depthwise kernels, stacks, heads, embeddings and vectors;
"(in, out)" is how many matrices and stacks are kept transposed, "in groups" how many kernels are grouped convolutions'.
Families that have none of these, and one head at most, are summed.
"""

import contextlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from autowarm.optim import partition
from tests.families import Unfilled

TABLE = Path(__file__).with_name("families.txt")
COLUMNS = ("matrices", "depthwise", "stacks", "heads", "embeddings", "vectors", "transposed")
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers")


def timm_models() -> Iterator[tuple[str, nn.Module]]:
    import timm

    families: dict[str, str] = {}
    for name in timm.list_models():
        families.setdefault(timm.models._registry._model_to_module[name], name)
    for name in families.values():
        with torch.device("meta"), Unfilled():
            model = timm.create_model(name)
        yield name, model


def torchvision_models() -> Iterator[tuple[str, nn.Module]]:
    import torchvision

    families: dict[str, str] = {}
    for name in torchvision.models.list_models():
        if "quantized" not in name:
            families.setdefault(torchvision.models.get_model_builder(name).__module__, name)
    for module, name in families.items():
        without = {"weights_backbone": None} if "detection" in module or "segmentation" in module else {}
        try:
            with torch.device("meta"), Unfilled():
                model = torchvision.models.get_model(name, weights=None, **without)
        except NotImplementedError:  # some compute their sizes with tensors
            continue
        yield name, model


def transformers_models() -> Iterator[tuple[str, nn.Module]]:
    """Every language model that its default config builds, at four layers; deeper ones repeat them."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        with contextlib.suppress(Exception), torch.device("meta"):
            config = transformers.AutoConfig.for_model(kind)
            for layers in LAYERS:
                if isinstance(getattr(config, layers, None), int) and getattr(config, layers) > 4:
                    setattr(config, layers, 4)
            yield kind, getattr(transformers, name)(config)


PACKAGES = {"timm": timm_models, "torchvision": torchvision_models, "transformers": transformers_models}


def rows(package: str) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, model in PACKAGES[package]():
            parts = partition(model)
            counts = {column: len(getattr(parts, column)) for column in COLUMNS}
            trained = sum(p.is_floating_point() for p in model.parameters())
            assert sum(counts.values()) - counts["transposed"] == trained, name
            text = ", ".join(f"{n} {column}" for column, n in counts.items() if n)
            text += f", {len(parts.groups)} in groups" if parts.groups else ""
            yield f"{package} {name}: {text}".replace("transposed", "(in, out)")


def table(package: str) -> list[str]:
    lines, usual = [], Counter[str]()
    for row in rows(package):
        counts = row.partition(": ")[2]
        if re.fullmatch(r"\d+ matrices(, 1 heads)?(, \d+ embeddings)?, \d+ vectors", counts):
            usual.update(families=1, **{role: int(n) for n, role in re.findall(r"(\d+) (\w+)", counts)})
        else:
            lines.append(row)
    return [*lines, f"{package}, all others: " + ", ".join(f"{usual[role]} {role}" for role in sorted(usual))]


@pytest.mark.long
@pytest.mark.parametrize("package", PACKAGES)
def test_every_family_goes_where_the_table_says(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    stored = [line for line in TABLE.read_text().splitlines() if line.startswith(package)]
    assert table(package) == stored


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    TABLE.write_text("".join(f"{row}\n" for package in PACKAGES for row in table(package)))
