"""Fused weights: their blocks, of equal sizes or not, are matrices of their own, also in stacks and transposed."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import LMO, Muon
from autowarm.geometry import Spectral
from autowarm.others import geometry_of, kappa_of
from tests.cases import each
from tests.optim.makers import said_by

HEADS, WIDTH, INPUTS = (4, 1, 1), 6, 16  # 24 rows of queries, 6 of keys, 6 of values
ROWS = [n * WIDTH for n in HEADS]


class Fused(nn.Module):
    """Grouped queries, as people write them by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(INPUTS, sum(ROWS), bias=False)
        self.proj = nn.Linear(24, INPUTS, bias=False)


@each(
    ("sizes", "rows"), [*((sizes, ROWS) for sizes in (HEADS, ROWS, (8, 2, 2))), *((n, [36 // n] * n) for n in (1, 3))]
)
@each("method", ["svd", "newton-schulz", "polar-express"])
@each("radius", ["match_rms_adamw", 0.7])
@each("turned", [False, True])
@each("stacked", [False, True])
def test_blocks_and_stacked_or_transposed_matrices_are_matrices_of_their_own(
    sizes: int | tuple[int, ...], rows: list[int], method: str, radius: Any, turned: bool, stacked: bool
) -> None:
    torch.manual_seed(0)
    g = torch.randn(*([3] * stacked), 36, INPUTS, dtype=torch.float64)
    how = {"method": method, "dtype": torch.float64}
    fused, one = Spectral(radius, stacked=stacked, transposed=turned, blocks=sizes, **how), Spectral(radius, **how)
    parts = [part for whole in (g if stacked else [g]) for part in whole.split(rows)]
    steps = torch.cat([one.lmo(part) for part in parts]).reshape(g.shape)
    whole, steps = (x.mT.contiguous() if turned else x for x in (g, steps))
    torch.testing.assert_close(fused.lmo(whole), steps)
    torch.testing.assert_close(fused.norm(whole), torch.stack([one.norm(part) for part in parts]).amax())
    torch.testing.assert_close(fused.dual(whole), torch.stack([one.dual(part) for part in parts]).sum())
    assert fused.kappa(whole.shape) == pytest.approx(sum(one.kappa(part.shape) for part in parts))
    x = nn.Parameter(whole.clone())
    x.grad = whole.clone()
    LMO([x, nn.Parameter(torch.zeros_like(whole))], lr=0.1, geometry=fused, momentum=0.0).step()
    torch.testing.assert_close(x.detach() - whole, 0.1 * steps)


@each("sizes", [HEADS, ROWS])
def test_muon_reads_a_models_layers_in_blocks(sizes: tuple[int, ...]) -> None:
    fused = nn.ModuleList(Fused() for _ in range(3))
    opt, again, other = (Muon.from_model(fused, heads=[], blocks={"qkv": blocks}) for blocks in (sizes, [*sizes], 6))
    assert opt.param_groups[0]["role"] == f"matrices in {tuple(sizes)} blocks"
    assert opt.param_groups[0]["geometry"].blocks == tuple(sizes)
    assert kappa_of(opt, geometry_of(opt)) == 3 * (16 + 6 + 6 + 16)
    for one in fused:
        one.qkv.weight.grad = torch.randn(36, INPUTS)
    said_by(opt.step)
    again.load_state_dict(copy.deepcopy(opt.state_dict()))
    with pytest.raises(ValueError, match="other geometries"):
        other.load_state_dict(opt.state_dict())


def test_sizes_that_do_not_fit_are_refused() -> None:
    for sizes, says in (
        ((4, 2, 1), r"36 rows .* do not divide into blocks of \("),
        ((36, 6, 6), r"36 rows .* do not divide into blocks of \("),
        *((wrong, "blocks must be at least 1, or a tuple of such sizes") for wrong in ((), (4, 0), (4, 1.0), 0)),
    ):
        with pytest.raises(ValueError, match=says):
            Muon.from_model(Fused(), heads=[], blocks={"qkv": sizes})
    for layer in (nn.ConvTranspose2d(8, 6, 3), nn.Conv2d(8, 8, 3, groups=2)):
        with pytest.raises(ValueError, match="whose blocks are its groups"):
            Muon.from_model(nn.Sequential(layer, nn.ReLU()), heads=[], blocks={"weight": (1, 1)})


def test_blocks_of_an_adapter_cut_its_outputs() -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(Fused(), peft.LoraConfig(target_modules=["qkv"], r=4))
    opt = Muon.from_model(model, heads=[], blocks={"qkv": 3})
    blocks = {name: group["geometry"].blocks for group in opt.param_groups for name in group["param_names"]}
    assert {blocks[name] for name in blocks if "lora_A" in name} == {1}
    assert {blocks[name] for name in blocks if "lora_B" in name or "qkv.base" in name} == {3}
