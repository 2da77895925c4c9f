"""The experiments' networks, from transformers and timm. Their random weights depend on the seed alone."""

import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import ModelConfig
from ..errors import needs


def llama(config: ModelConfig, seed: int) -> nn.Module:
    """Build a LLaMA in float32, with weights drawn from the seed. The global generator is left alone."""
    import transformers  # slow to import, so imported only here

    shape = transformers.LlamaConfig(
        vocab_size=config.vocab_size, hidden_size=config.width, intermediate_size=config.ff,
        num_hidden_layers=config.layers, num_attention_heads=config.heads, num_key_value_heads=config.heads,
        max_position_embeddings=config.seq_len, initializer_range=config.init_scale / math.sqrt(config.width),
        rms_norm_eps=config.norm_eps, tie_word_embeddings=True, use_cache=False, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = transformers.LlamaForCausalLM(shape)
        for layer in model.model.layers:
            if config.scaled_residual:
                for writes in (layer.self_attn.o_proj, layer.mlp.down_proj):  # to the residual stream
                    writes.weight.detach().mul_(1 / math.sqrt(2 * config.layers))
            if config.fused_qkv:  # one matrix ``qkv``, with q on top
                parts = [getattr(layer.self_attn, name).weight.detach() for name in _QKV]
                layer.self_attn.qkv = whole = nn.Linear(config.width, 3 * config.width, bias=False, device="meta")
                whole.weight = nn.Parameter(torch.cat(parts))
                for index, name in enumerate(_QKV):
                    setattr(layer.self_attn, name, _Rows(whole, index))
    return model


_QKV = ("q_proj", "k_proj", "v_proj")


class _Rows(nn.Module):
    """The outputs q, k or v of a linear layer for all three, which is not a part of it."""

    def __init__(self, whole: nn.Linear, index: int) -> None:
        super().__init__()
        self.whole, self.index = (whole,), index  # in a tuple, so that it is no submodule

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.whole[0].weight.chunk(len(_QKV))[self.index])


def _unfused(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the names of a LLaMA with q, k and v apart."""
    apart: dict[str, Tensor] = {}
    for name, value in state.items():
        place, fused, _ = name.partition("qkv.weight")
        parts = zip(_QKV, value.chunk(len(_QKV)), strict=True)
        apart |= {f"{place}{part}.weight": rows.clone() for part, rows in parts} if fused else {name: value}
    return apart


def classifier(config: ModelConfig, seed: int, classes: int, shape: tuple[int, int, int]) -> nn.Module:
    """Build timm's classifier of images of shape (channels, height, width), in float32, with weights from the seed.

    "swin" is a Swin of two stages, with one token per pixel and windows of 4×4.
    """
    with needs(f"the model {config.name!r}", "vision"):
        import timm

    name = config.name
    options: dict[str, Any] = {"num_classes": classes, "in_chans": shape[0]}
    if name == "swin":
        name = "swin_tiny_patch4_window7_224"
        options |= {"img_size": shape[1:], "patch_size": 1, "window_size": 4, "embed_dim": config.width,
                    "depths": (config.layers,) * 2, "num_heads": (config.heads, 2 * config.heads)}  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return timm.create_model(name, **options)


def matrices(config: ModelConfig) -> list[tuple[tuple[int, int], int]]:
    """List the shapes of the matrices in a LLaMA's layer, and how many there are of each."""
    d, ff = config.width, config.ff
    return [((d, d), 4), ((ff, d), 2), ((d, ff), 1)]


def parameters(config: ModelConfig) -> int:
    """Count the parameters of a LLaMA of this shape, its tied embedding once."""
    layer = sum(math.prod(shape) * count for shape, count in matrices(config)) + 2 * config.width
    return config.vocab_size * config.width + config.layers * layer + config.width


def flops_per_token(config: ModelConfig) -> float:
    """Count the operations of a forward and backward pass: 6 per parameter, plus 12·layers·width·seq_len for attention.

    Model FLOPs utilisation usually uses this count (PaLM, App. B), which treats attention as not causal.
    """
    return 6.0 * parameters(config) + 12.0 * config.layers * config.width * config.seq_len


def token_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the mean cross-entropy of next-token prediction in nats per token, computed in float32 or better."""
    return F.cross_entropy(*token_logits(model, batch))


def token_logits(model: nn.Module, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of all places of a batch, (places, vocabulary) in float32 or better, and the targets."""
    logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    wide = torch.promote_types(logits.dtype, torch.float32)
    return logits.to(wide).flatten(0, 1), batch[:, 1:].flatten()


def save_weights(model: Any, folder: Path, state: Mapping[str, Tensor] | None = None) -> None:
    """Write `model.safetensors` and a `config.json`, for `from_pretrained` of a LLaMA or `timm.create_model`.

    `state` is the full weights, if the model itself holds only shards of them.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".weights-") as scratch:
        (usual := Path(scratch, "usual")).touch()
        mode = usual.stat().st_mode  # as the umask has it; safetensors lets nobody else read its files
        usual.unlink()
        _save(model, Path(scratch), state)  # transformers deletes what looks like weights beside its own
        for written in sorted(Path(scratch).iterdir()):
            written.chmod(mode)
            os.replace(written, folder / written.name)


def _save(model: Any, folder: Path, state: Mapping[str, Tensor] | None) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file, save_model

    path, of_transformers = folder / "model.safetensors", hasattr(model, "save_pretrained")
    try:
        if of_transformers:
            from transformers.utils import logging

            logging.disable_progress_bar()  # no bar for a file that takes a millisecond to write
            if any(isinstance(module, _Rows) for module in model.modules()):
                state = _unfused(model.state_dict() if state is None else state)
            model.save_pretrained(folder, state_dict=None if state is None else dict(state))
        elif state is None:
            save_model(model, str(path), metadata={"format": "pt"})
        else:
            save_file({name: value.contiguous() for name, value in state.items()}, path, metadata={"format": "pt"})
    except SafetensorError as error:  # also raised on a full disk
        raise OSError(f"{path.name} cannot be written: {error}") from None
    if hasattr(model, "pretrained_cfg") and not of_transformers:  # timm's; a user's own is built by the user's code
        about = {"architecture": model.pretrained_cfg.get("architecture"), "num_classes": model.num_classes}
        (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n")
