"""Whose geometry is which."""

import importlib
import warnings

import lion_pytorch
import pytest
import timm.optim
import torch
from torch import nn

from autowarm import LMO, Lion, Muon, NormSGD, SignSGD
from autowarm.geometry import Frobenius, Sign, Spectral
from autowarm.optim import Together, geometry_of, kappa_of, known

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


# Each where it installs from PyPI beside the others; dion and torchtitan do not, and their classes go by name.
PEERS = {
    "timm.optim": {"Muon": Spectral, "Lion": Sign},
    "lion_pytorch": {"Lion": Sign},
    "pytorch_optimizer": {
        **dict.fromkeys(["Muon", "AdaMuon", "NorMuon", "SCION", "SCIONLight"], Spectral),
        **dict.fromkeys(["Lion", "Tiger", "SignSGD"], Sign),
    },
    "heavyball": {"Muon": Spectral, "MuonAdamW": Spectral, "Scion": Spectral},
    "bitsandbytes.optim": dict.fromkeys(
        ["Lion", "Lion8bit", "Lion32bit", "PagedLion", "PagedLion8bit", "PagedLion32bit"], Sign
    ),
}


@pytest.mark.parametrize("package", PEERS)
def test_the_real_classes_of_other_packages(package: str) -> None:
    from autowarm import AdaptiveWarmup

    module = importlib.import_module(package)
    for name, geometry in PEERS[package].items():
        w = nn.Parameter(torch.zeros(4, 6))
        # pytorch-optimizer's want to be told which groups are matrices.
        params = [{"params": [w], "use_muon": True}] if package == "pytorch_optimizer" else [w]
        opt = getattr(module, name)(params, lr=0.01)
        assert type(geometry_of(opt)) is geometry, name
        assert kappa_of(opt, geometry_of(opt)) == (4 if geometry is Spectral else 24)
        # And the scheduler works on it: what it sets is what the optimizer steps by.
        AdaptiveWarmup(opt, 10, div=100.0)
        assert opt.param_groups[0]["lr"] == pytest.approx(1e-4)


@pytest.mark.parametrize("name", ["Dion", "Dion2", "NorDion2", "Muon", "MuonKellerJordan", "NorMuon", "DistMuon"])
def test_dions_and_torchtitans_classes_by_name(name: str) -> None:
    stand_in = type(name, (torch.optim.SGD,), {})
    assert isinstance(geometry_of(stand_in(W, lr=0.1)), Spectral)


@pytest.mark.parametrize("package", ["bitsandbytes.optim", "timm.optim", "heavyball", "pytorch_optimizer"])
def test_adams_kin_of_other_packages(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_said", set())
    module = importlib.import_module(package)
    name = next(name for name in ("AdamW8bit", "NAdamW", "FlashAdamW", "AdamW") if hasattr(module, name))
    with pytest.warns(UserWarning, match="is no norm-constrained optimizer"):
        assert geometry_of(getattr(module, name)([nn.Parameter(torch.zeros(4, 6))], lr=0.1)) == Sign()


def test_a_wrapper_whose_rates_nobody_reads_is_refused() -> None:
    import heavyball

    split = heavyball.SplitOpt(
        [
            {"params": [nn.Parameter(torch.zeros(4, 6))], "optimizer": heavyball.Muon, "lr": 0.02},
            {"params": [nn.Parameter(torch.zeros(6))], "optimizer": heavyball.AdamW, "lr": 0.01},
        ]
    )
    with pytest.raises(ValueError, match="SplitOpt does not step by the rates in its own param_groups"):
        geometry_of(split)
    together = Together(*split.optimizers)
    assert isinstance(geometry_of(together), Spectral)
    assert kappa_of(together, geometry_of(together)) == 4


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
