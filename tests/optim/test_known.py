"""Whose geometry is which."""

import warnings

import lion_pytorch
import pytest
import timm.optim
import torch
from torch import nn

from autowarm import LMO, Lion, Muon, NormSGD, SignSGD
from autowarm.geometry import Frobenius, Sign, Spectral
from autowarm.optim import geometry_of, kappa_of, known

W = [nn.Parameter(torch.zeros(4, 6))]


@pytest.mark.parametrize(
    ("optimizer", "geometry"),
    [
        (Muon(W, radius="original"), Spectral),
        (Lion(W), Sign),
        (SignSGD(W), Sign),
        (NormSGD(W), Frobenius),
        (LMO(W, geometry=Sign(radius=3.0)), Sign),
        (torch.optim.Muon(W), Spectral),
        (lion_pytorch.Lion(W), Sign),
        (timm.optim.Lion(W), Sign),
        (timm.optim.Muon(W), Spectral),
    ],
    ids=lambda x: type(x).__name__,
)
def test_known_optimizers(optimizer: torch.optim.Optimizer, geometry: type) -> None:
    found = geometry_of(optimizer)
    assert type(found) is geometry
    assert found.radius == 1.0


def test_adamw_is_sign_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_said", set())
    with pytest.warns(UserWarning, match="AdamW is no norm-constrained optimizer"):
        assert geometry_of(torch.optim.AdamW(W)) == Sign()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        geometry_of(torch.optim.AdamW(W))


def test_a_subclass_is_known_by_its_parent() -> None:
    class Mine(torch.optim.Muon):
        pass

    assert isinstance(geometry_of(Mine(W)), Spectral)


def test_an_unknown_optimizer_names_the_choices() -> None:
    with pytest.raises(ValueError, match="geometry of SGD is not known: pass geometry='spectral', 'sign', 'frobenius'"):
        geometry_of(torch.optim.SGD(W))


def test_kappa_is_over_all_matrices_at_radius_one() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.layer = nn.Embedding(10, 4), nn.Linear(4, 8)
            self.experts = nn.Parameter(torch.zeros(3, 5, 7))

    opt = Muon.from_model(Net(), lr=1e-3)
    # Embedding 4 and layer 4 as matrices, three experts of 5 each; the bias does not count.
    assert kappa_of(opt, geometry_of(opt)) == 4 + 4 + 15
    assert kappa_of(opt, Sign()) == 40 + 32 + 105
    assert kappa_of(opt, Spectral(radius=2.0)) == 4 * (4 + 4 + 15)
    with pytest.raises(ValueError, match="pass kappa="):
        kappa_of(SignSGD([nn.Parameter(torch.zeros(3))]), Sign())


def test_frozen_matrices_do_not_count() -> None:
    frozen, trained = nn.Parameter(torch.zeros(4, 6), requires_grad=False), nn.Parameter(torch.zeros(2, 3))
    assert kappa_of(torch.optim.Muon([frozen, trained]), Spectral()) == 2


def test_a_geometry_of_ones_own_with_its_own_arguments() -> None:
    class Weighted(Sign):
        def __init__(self, weight: float) -> None:
            super().__init__(radius=1.0 / weight)

    opt = LMO(W, geometry=Weighted(2.0))
    assert geometry_of(opt).radius == 1.0
    assert kappa_of(opt, geometry_of(opt)) == 24
