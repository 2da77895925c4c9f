"""A convolution's kernel is read as the matrices that its layer multiplies by: one for each group."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autowarm import LMO, Muon
from autowarm.geometry import Spectral
from autowarm.optim import partition
from autowarm.others import kappa_of
from autowarm.smoothness import Probe
from tests.cases import each

KINDS = [(turned, dims) for turned in (False, True) for dims in (1, 2, 3)]
CONVOLUTIONS = {kind: getattr(nn, f"Conv{'Transpose' * kind[0]}{kind[1]}d") for kind in KINDS}
# Inputs, outputs and groups: dense, in groups, with one row in each group, with one column, and with several rows.
SIZES = [(4, 6, 1), (6, 4, 1), (4, 6, 2), (6, 4, 2), (12, 6, 3), (6, 6, 6), (6, 12, 6), (12, 6, 6), (1, 5, 1)]
LAYERS = [
    (transposed, dims, side, size)
    for transposed, dims in CONVOLUTIONS
    for side in (1, 2, 3)
    for size in SIZES
    if (dims < 3 or side < 3) and not (transposed and size[0] == 1)  # which is a single column
]


def a_layer(transposed: bool, dims: int, side: int, size: tuple[int, int, int]) -> Any:
    torch.manual_seed(0)
    inputs, outputs, groups = size
    make = CONVOLUTIONS[transposed, dims]
    return make(inputs, outputs, side, stride=side, groups=groups, bias=False, dtype=torch.float64)


def operator(layer: Any, weight: Tensor) -> Tensor:
    """The matrix of a convolution whose patches do not overlap, on one patch, column by column."""
    dims = weight.ndim - 2
    patch = (1,) * dims if layer.transposed else layer.kernel_size
    units = torch.eye(layer.in_channels * math.prod(patch), dtype=weight.dtype)
    with torch.no_grad():
        patches = units.reshape(-1, layer.in_channels, *patch)
        return torch.func.functional_call(layer, {"weight": weight}, patches).flatten(1).T


def read_as(layer: nn.Module, **options: Any) -> Spectral:
    """The geometry that an optimizer in spectral geometry gives the layer's kernel."""
    opt = LMO.from_model(nn.ModuleDict({"conv": layer, "more": nn.Linear(3, 3)}), geometry=Spectral(**options))
    return next(g["geometry"] for g in opt.param_groups if any(p is layer.weight for p in g["params"]))


@each(("transposed", "dims", "side", "size"), LAYERS)
def test_norms_and_steps_are_those_of_the_operator(
    transposed: bool, dims: int, side: int, size: tuple[int, int, int]
) -> None:
    layer = a_layer(transposed, dims, side, size)
    g = layer.weight.detach()
    geometry = read_as(layer)
    sigmas = torch.linalg.svdvals(operator(layer, g))
    torch.testing.assert_close(geometry.norm(g), sigmas.amax())
    torch.testing.assert_close(geometry.dual(g), sigmas.sum())
    step = geometry.lmo(g)
    assert step.shape == g.shape
    torch.testing.assert_close((g * step).sum(), -sigmas.sum())
    of_step = torch.linalg.svdvals(operator(layer, step))
    ones = of_step > 0.5
    torch.testing.assert_close(of_step, ones.double())
    assert geometry.kappa(g.shape) == ones.sum()
    assert torch.equal(geometry.tensor(geometry.matrices(g), g.shape), g)
    assert [size[2] * side for side in geometry.matrix_shape(g.shape)] == [*operator(layer, g).shape]


@pytest.mark.parametrize("norm", [None, nn.utils.parametrizations.weight_norm])
@each(("transposed", "dims", "side", "size"), LAYERS)
def test_kernels_with_one_row_in_each_group_go_to_adamw(
    norm: Any, transposed: bool, dims: int, side: int, size: tuple[int, int, int]
) -> None:
    layer = a_layer(transposed, dims, side, size)
    shape = layer.weight.shape
    groups = size[2]
    model = nn.ModuleDict({"conv": layer if norm is None else norm(layer), "more": nn.Linear(3, 3)})
    parts = partition(model)
    kernel = next(n for n, p in model.named_parameters() if p.shape == shape and n.endswith(("weight", "original1")))
    group = next(g for g in Muon.from_model(model).param_groups if kernel in g["param_names"])
    if groups > 1 and (shape[0] == groups or shape[1:].numel() == 1):
        assert kernel in [name for name, _ in parts.depthwise]
        assert (group["algorithm"], group["weight_decay"]) == ("adamw", 0.1)
    elif shape[1:].numel() == 1:
        assert group["algorithm"] == "adamw"
    else:
        assert not parts.depthwise
        assert group["algorithm"] == "muon"
        assert (group["geometry"].blocks, group["geometry"].transposed) == (groups, transposed)


def test_kappa_and_the_probe_count_each_row_of_a_depthwise_kernel() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.Flatten(), nn.Linear(8, 4))
    opt = Muon.from_model(model, lr=1e-2, heads=[])
    assert kappa_of(opt, Spectral()) == 3 + 8 + 4
    probe = Probe(model, opt, geometry="spectral")

    def closure() -> Tensor:
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        model[1].weight.grad = torch.ones_like(model[1].weight)
        return torch.zeros(())

    before = model[1].weight.detach().clone()
    with probe(closure):
        opt.step()
    rows = (model[1].weight.detach() - before).flatten(1).norm(dim=1)
    assert probe.points[0].step_norm == pytest.approx(float(rows.amax()), rel=1e-4)


def test_blocks_join_a_convolutions_groups() -> None:
    model = nn.ModuleDict({"qkv": nn.Conv1d(8, 24, 3, groups=2), "up": nn.ConvTranspose1d(8, 6, 2)})
    opt = Muon.from_model(model, blocks={"qkv": 3}, heads=[])
    assert sorted(g["geometry"].blocks for g in opt.param_groups if g["algorithm"] == "muon") == [1, 6]
    with pytest.raises(ValueError, match="up.weight is the kernel of a transposed convolution"):
        Muon.from_model(model, blocks={"up": 2}, heads=[])
