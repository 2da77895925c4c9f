"""Geometries by name, and the norm of a whole model."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from .._torch.modes import without_autocast
from .base import Geometry
from .euclidean import Columns, Frobenius, Rows, Sign
from .spectral import Spectral

GeometryName = Literal["spectral", "sign", "frobenius", "rows", "columns"]

_BY_NAME: Mapping[str, type[Geometry]] = {
    kind.__name__.lower(): kind for kind in (Spectral, Sign, Frobenius, Rows, Columns)
}


def resolve(geometry: str | Geometry) -> Geometry:
    """Return the geometry itself, or the one with this name at radius 1.

    Raises:
        ValueError: the name is unknown; the message lists the known ones.
        TypeError: the argument is neither a name nor a `Geometry`.

    Example:
        >>> from autowarm.geometry import resolve
        >>> resolve("sign")
        Sign(radius=1.0)
    """
    if isinstance(geometry, Geometry):
        return geometry
    if not isinstance(geometry, str):
        raise TypeError(f"a geometry is one of {sorted(_BY_NAME)} or a Geometry, got {type(geometry).__name__}")
    if geometry not in _BY_NAME:
        raise ValueError(f"unknown geometry {geometry!r}: use one of {sorted(_BY_NAME)} or a Geometry of your own")
    return _BY_NAME[geometry]()


class MaxOverLayers:
    """The norm of a whole model: the largest over its tensors (paper, Table "optimizers", row "Layer-wise").

    Args:
        geometries: one for all tensors, or one per tensor (so hybrids are lists).

    Every method takes the model's tensors in order.

    Raises:
        ValueError: the number of tensors is not the number of geometries.

    Example:
        >>> import torch
        >>> from autowarm.geometry import MaxOverLayers, Sign, Spectral
        >>> hybrid = MaxOverLayers([Spectral(), Sign()])
        >>> tensors = [torch.eye(3), torch.tensor([2.0, -5.0])]
        >>> hybrid.norm(tensors).item(), hybrid.dual(tensors).item(), hybrid.kappa([(3, 3), (2,)])
        (5.0, 10.0, 5.0)
    """

    def __init__(self, geometries: str | Geometry | Sequence[str | Geometry]) -> None:
        if isinstance(geometries, (str, Geometry)):
            self._given: Geometry | list[Geometry] = resolve(geometries)
        else:
            self._given = [resolve(one) for one in geometries]

    def each(self, count: int) -> list[Geometry]:
        """Return the geometries of this many tensors."""
        if isinstance(self._given, Geometry):
            return [self._given] * count
        if len(self._given) != count:
            raise ValueError(f"{len(self._given)} geometries were given for {count} tensors: give one, or one for each")
        return self._given

    @without_autocast
    def norm(self, xs: Sequence[Tensor]) -> Tensor:
        """Return maxᵢ ‖xᵢ‖ over the tensors."""
        return torch.stack([g.norm(x) for g, x in zip(self.each(len(xs)), xs, strict=True)]).amax()

    @without_autocast
    def dual(self, gs: Sequence[Tensor]) -> Tensor:
        """Return Σᵢ ‖gᵢ‖⋆ over the tensors."""
        return torch.stack([g.dual(x) for g, x in zip(self.each(len(gs)), gs, strict=True)]).sum()

    def kappa(self, shapes: Sequence[Sequence[int]]) -> float:
        """Return Σᵢ Rᵢ²κᵢ over the tensors."""
        return sum(g.kappa(shape) for g, shape in zip(self.each(len(shapes)), shapes, strict=True))


def total_kappa(params: Iterable[Tensor], geometry: str | Geometry) -> float:
    """Return κ of a model as the paper counts it: all its matrices under one geometry.

    Every tensor of two or more dimensions counts once, embeddings included; a tied weight is one tensor. Vectors and
    scalars do not count. For a mixture of geometries and radii, use ``MaxOverLayers(...).kappa(shapes)``.

    Args:
        params: the trained tensors.
        geometry: a name or a `Geometry`; the paper's has radius 1.

    Returns:
        κ, dimensionless. The authors' LLaMA-124M with fused query-key-value matrices has 46848 for "spectral",
        123568128 for "sign" and 61 for "frobenius"; with split ones 65280, the same, and 85.

    Raises:
        ValueError: there is no tensor of two or more dimensions.

    Example:
        >>> import torch
        >>> from autowarm.geometry import total_kappa
        >>> total_kappa(torch.nn.Linear(8, 4).parameters(), "spectral")
        4.0
    """
    if isinstance(params, nn.Module):
        raise TypeError("κ is of tensors, not of a module: pass model.parameters()")
    unique = {id(p): p for p in params if p.ndim >= 2}
    if not unique:
        raise ValueError("κ needs at least one trained tensor of two or more dimensions, and there is none")
    return MaxOverLayers(geometry).kappa([p.shape for p in unique.values()])
