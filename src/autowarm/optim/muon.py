"""Muon: steps matrices in the spectral norm and everything else by AdamW."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from ..geometry import RadiusRule, Sign, Spectral
from ..orthogonalize import Method
from .lmo import LMO, Common
from .model.partition import Named, by_reading, check_blocks, partition
from .step.adamw import AdamW
from .step.update import Oracle, Rule


class Muon(LMO):
    """LMO in the spectral norm for matrices, AdamW for everything else (paper, App. "optimizers"; Moonlight's form).

    Each step moves a matrix along UVᵀ of its momentum, scaled by the geometry's radius. By default 4 Polar Express
    iterations compute UVᵀ; ``method="newton-schulz"`` runs the 5 iterations of `torch.optim.Muon`.

    PyTorch's AdamW updates the groups with ``algorithm="adamw"``, at each group's own ``lr`` and ``weight_decay`` and
    with ``adamw_betas`` and ``adamw_eps``. `from_model` makes such groups for embeddings, output heads, biases and
    norms.

    Args:
        params: matrices, or groups of them. A matrix is a tensor of two or more dimensions; a convolution kernel is
            read as (out, in·k·k).
        lr: peak rate η > 0, a float or a one-element tensor.
        momentum: β in [0, 1).
        nesterov: use β·m + (1−β)·g as the momentum that the step follows, instead of m.
        radius: R, which scales each step: a number, or a rule that computes it from the shape. "match_rms_adamw" is
            Moonlight's 0.2·√max(m, n), with which Muon trains well at AdamW's learning rates; "original" is √max(1,
            m/n) and "spectral_unclamped" is √(m/n).
        method: "polar-express", "newton-schulz" or "svd", see `autowarm.orthogonalize`.
        steps: number of iterations; None for the method's usual number.
        dtype: dtype of the iterations; None for the fastest on the device, which is bfloat16 if the hardware supports
            it.
        adamw_betas: β1, β2 of the AdamW groups.
        adamw_eps: ε of the AdamW groups.
        process_group, common: see `LMO`.

    Raises:
        ValueError: an option is out of range, or a matrix group contains a tensor of fewer than two dimensions.

    Example:
        >>> import torch
        >>> from autowarm import Muon
        >>> model = torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 8))
        >>> Muon.from_model(model, lr=1e-3)  # doctest: +NORMALIZE_WHITESPACE, +ELLIPSIS
        Muon(
          matrices (1; 64 parameters): algorithm=muon, lr=0.001, weight_decay=0.1, geometry=Spectral(...), ...
          embeddings and vectors (2; 88 parameters): algorithm=adamw, lr=0.001, weight_decay=0.0, ...
        )
    """

    _rules: ClassVar[dict[str, Rule]] = {
        "muon": Oracle(("algorithm", "lr", "weight_decay", "geometry", "momentum", "nesterov")),
        "adamw": AdamW(("algorithm", "lr", "weight_decay", "adamw_betas", "adamw_eps")),
    }
    _ends: ClassVar[dict[str, float]] = LMO._ends | {"adamw_betas": 1.0, "adamw_eps": math.inf}
    _choices: ClassVar[dict[str, tuple[str, ...]]] = {"algorithm": ("muon", "adamw")}

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        radius: float | RadiusRule = "match_rms_adamw",
        method: Method = "polar-express",
        steps: int | None = None,
        dtype: torch.dtype | None = None,
        adamw_betas: tuple[float, float] = (0.8, 0.999),
        adamw_eps: float = 1e-8,
        process_group: dist.ProcessGroup | None = None,
        **common: Unpack[Common],
    ) -> None:
        adamw = {"adamw_betas": adamw_betas, "adamw_eps": adamw_eps}  # options of the groups with algorithm="adamw"
        spectral = Spectral(radius, method=method, steps=steps, dtype=dtype)
        options = {"geometry": spectral, "momentum": momentum, "nesterov": nesterov, "algorithm": "muon"}
        self._build(params, lr, common, process_group, **options, **adamw)

    @classmethod
    def from_model(
        cls,
        model: nn.Module,
        lr: float | Tensor = 1e-3,
        *,
        weight_decay: float = 0.1,
        blocks: Mapping[str, int | Sequence[int]] | None = None,
        heads: Sequence[str] | None = None,
        adamw_lr: float | Tensor | None = None,
        adamw_weight_decay: float | None = None,
        **options: Any,
    ) -> Self:
        """Build Muon for a model's hidden matrices and AdamW for its embeddings, output heads, biases and norms.

        Weight decay λ applies to the weights of linear and convolution layers only, not to embeddings (or a head tied
        to one) and not to vectors, nor to what the model exempts (``no_weight_decay()``). Each matrix in a stack of
        expert matrices is orthogonalised separately, and so is each group of a convolution. AdamW updates depthwise
        convolutions, whose groups have a single row. Frozen tensors are included, and are updated once you unfreeze
        them.

        Args:
            blocks: fused weights to split into blocks of rows for their update, as regular expression → number of
                equal blocks or a tuple of sizes, in heads or rows: ``{"qkv": 3}``, or ``{"qkv": (32, 8, 8)}`` where 32
                heads of queries share 8 of keys and of values. κ counts the blocks. Rows are outputs, also in layers
                that store their weights as (in, out), as GPT-2's do. Blocks are contiguous: where q, k and v lie head
                by head, as in GPT-NeoX, give 3 × heads. A convolution's groups are blocks in any case.
            heads: regular expressions for the names of output layers, see `autowarm.optim.partition`. None detects
                them; an empty list means that the model has none.
            adamw_lr: peak rate of the AdamW groups; None for ``lr``. A scheduler keeps the ratio of the two rates.
            adamw_weight_decay: λ of output heads and embeddings; None for ``weight_decay`` on heads and 0 on
                embeddings. Vectors never decay.
            options: arguments of the class itself, such as ``adamw_betas``.

        Raises:
            ValueError: the model has no hidden matrix, several layers may be its output, a weight's rows do not divide
                into its blocks, or a pattern matches no name.

        Example:
            >>> import torch
            >>> from autowarm import Muon
            >>> layer = torch.nn.ModuleDict({"qkv": torch.nn.Linear(8, 24), "out": torch.nn.Linear(8, 8)})
            >>> opt = Muon.from_model(layer, lr=0.02, blocks={"qkv": 3}, adamw_lr=0.004)
            >>> [(group["role"], group["lr"]) for group in opt.param_groups]
            [('matrices in 3 blocks', 0.02), ('matrices', 0.02), ('embeddings and vectors', 0.004)]
        """
        # Which tensors are hidden matrices, and how each is read as matrices
        parts = partition(model, heads=heads)
        if not (parts.matrices or parts.stacks):
            raise ValueError("Muon needs at least one hidden matrix and this model has none: use AdamW or Lion")
        check_blocks(blocks or {}, model, parts)
        chosen = {name: options[name] for name in ("method", "steps", "dtype") if name in options}
        spectral = Spectral(options.get("radius", "match_rms_adamw"), **{"method": "polar-express", **chosen})
        groups: list[dict[str, Any]] = []
        for geometry, named in by_reading(parts, parts.matrices + parts.stacks, spectral, blocks).items():
            role = "expert stacks" if geometry.stacked else "matrices"
            role += "" if geometry.blocks == 1 else f" in {geometry.blocks} blocks"
            role += ", kept as (in, out)" if geometry.transposed else ""
            groups.append({"params": named, "weight_decay": weight_decay, "geometry": geometry, "role": role})
        # The AdamW part: its own rate and decay where asked
        if isinstance(lr, Tensor) and isinstance(adamw_lr, (int, float)):
            adamw_lr = torch.full_like(lr, adamw_lr)
        adamw_part = {"algorithm": "adamw"} | ({} if adamw_lr is None else {"lr": adamw_lr})
        head_decay = weight_decay if adamw_weight_decay is None else adamw_weight_decay
        roles: list[tuple[str, list[Named], float]] = [("output heads", parts.heads, head_decay)]
        if adamw_weight_decay:
            roles += [("embeddings", parts.embeddings, adamw_weight_decay), ("vectors", parts.vectors, 0.0)]
        else:
            roles += [("embeddings and vectors", parts.embeddings + parts.vectors, 0.0)]
        groups += [{"params": named, "weight_decay": λ, "role": role, **adamw_part} for role, named, λ in roles]
        # Each group of a depthwise convolution is a single row, of which UVᵀ is the row at unit norm.
        rows = {"params": parts.depthwise, "weight_decay": weight_decay, "role": "depthwise kernels"}
        groups.append({**rows, "depthwise": True, **adamw_part})
        return cls(parts.by_decay(groups), lr, **options)

    def _settle(self, group: dict[str, Any]) -> None:
        if (use_muon := group.pop("use_muon", None)) is not None:  # how Muon's first scripts mark their groups
            meant = "muon" if use_muon else "adamw"
            if use_muon not in (True, False) or group.setdefault("algorithm", meant) != meant:
                raise ValueError(
                    f"use_muon must be True for Muon or False for AdamW, got {use_muon!r}: leave it out of a group "
                    "with an algorithm"
                )
        if group.get("algorithm", self.defaults["algorithm"]) == "adamw":
            # An AdamW step does not come from an oracle, but its entries are about ±1, so sign geometry describes it
            # best.
            group["geometry"] = Sign()
        super()._settle(group)

    def _check_tensors(self, group: dict[str, Any]) -> None:
        super()._check_tensors(group)
        if group["algorithm"] != "muon":  # AdamW steps any shape
            return
        too_flat = [tuple(p.shape) for p in group["params"] if p.ndim < 2]
        if too_flat:
            raise ValueError(
                f"Muon orthogonalises matrices but got tensors of shape {too_flat[:3]}: build it with "
                "Muon.from_model(model), or give such tensors a group with algorithm='adamw'"
            )
