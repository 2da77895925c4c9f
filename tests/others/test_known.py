"""Whose geometry is which."""

import csv
import importlib
import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW
from transformers.optimization import Adafactor

from autowarm import LMO, AdaptiveWarmup, Lion, Muon, NormSGD, SignSGD
from autowarm.geometry import Frobenius, Sign, Spectral, resolve
from autowarm.optim import Together
from autowarm.others import geometry_of, kappa_of, known
from autowarm.schedule import Calibration

W = [nn.Parameter(torch.zeros(4, 6))]


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_warned_of", set())


@pytest.mark.parametrize(
    ("optimizer", "geometry"),
    [
        (Muon(W, radius="original"), Spectral),
        (Lion(W), Sign),
        (SignSGD(W), Sign),
        (NormSGD(W), Frobenius),
        (LMO(W, geometry=Sign(radius=3.0)), Sign),
        *((type("Mine", (base,), {})(W), kind) for base, kind in ((torch.optim.Muon, Spectral), (AdamW, Sign))),
    ],
    ids=lambda x: type(x).__name__,
)
def test_ours_and_subclasses_are_known_at_radius_one(optimizer: torch.optim.Optimizer, geometry: type) -> None:
    with warnings.catch_warnings(action="error"):
        inferred = geometry_of(optimizer)
    assert type(inferred) is geometry
    assert inferred.radius == 1.0


OWN = {
    "schedulefree": ["AdamWScheduleFree", "SGDScheduleFree"],
    "prodigyopt": ["Prodigy"],
    "dadaptation": ["DAdaptAdam"],
    "dog": ["DoG", "LDoG"],
    "pytorch_optimizer": ["AdamG", "ScheduleFreeAdamW", "AdaFactor"],
}


@pytest.mark.parametrize("package", OWN)
@pytest.mark.parametrize("given", [{}, {"calibration": Calibration("sign", kappa=4.0)}])
def test_an_optimizer_with_a_rate_or_schedule_of_its_own_is_named(package: str, given: dict[str, Any]) -> None:
    for name in OWN[package]:
        opt = getattr(importlib.import_module(package), name)([nn.Parameter(torch.zeros(4, 6))])
        for one in (opt, SimpleNamespace(optimizer=opt)):  # as a trainer wraps it
            with warnings.catch_warnings(record=True) as caught_warnings:
                warnings.simplefilter("always")
                AdaptiveWarmup(one, 10, **given)
                AdaptiveWarmup(one, 10, decay="wso", **given)  # as the warning recommends
            texts = [str(caught.message) for caught in caught_warnings if "sets its own" in str(caught.message)]
            assert len(texts) == 1, name
            assert texts[0].startswith(f"{name} sets its own rate or schedule, and AdaptiveWarmup sets a second one")
            assert {caught.filename for caught in caught_warnings} == {__file__}


def test_adafactor_without_a_rate_is_refused_and_with_one_sets_none(recwarn: pytest.WarningsRecorder) -> None:
    with (
        pytest.warns(UserWarning, match="Adafactor sets its own rate or schedule, .* with relative_step=False"),
        pytest.raises(ValueError, match=r"every group's lr must be finite .* got \[nan\]"),
    ):
        AdaptiveWarmup(Adafactor(W), 10)
    AdaptiveWarmup(Adafactor(W, lr=0.1, relative_step=False, scale_parameter=False), 10, calibration="sign")
    assert not [one for one in recwarn if "sets its own" in str(one.message)]


def tried() -> list[tuple[str, str, bool]]:
    """The documentation's table of what was tried: class, geometry, and whether it is warned of."""
    path = Path(__file__).parents[2] / "docs" / "data" / "tables" / "optimizers-tried.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    # And some that it leaves out; dion's and torchtitan's by name.
    more = {
        "sign": ["pytorch_optimizer.Lion", "pytorch_optimizer.SignSGD", "bitsandbytes.optim.PagedLion8bit",
                 "bitsandbytes.optim.PagedAdamW", "timm.optim.NAdamW", "heavyball.AdamW", "torch.optim.Adam"],
        "spectral": ["pytorch_optimizer.Muon", "pytorch_optimizer.SCIONLight", "heavyball.MuonAdamW", "Muon",
                     "NorDion2", "DistMuon"],
    }  # fmt: skip
    rows += [[" ".join(f"`{name}`" for name in names), geometry, "no"] for geometry, names in more.items()]
    inferred = [(one, g.strip('`"'), warned != "no") for cell, g, warned in rows for one in re.findall("`(.+?)`", cell)]
    assert len(inferred) > 40
    return inferred


# Options without which these do not take a rate, or do not work at all.
NEEDED = {
    "transformers.optimization.Adafactor": {"relative_step": False},
    "bitsandbytes.optim.SGD8bit": {"momentum": 0.9},
}


@pytest.mark.parametrize(("name", "geometry", "warned"), tried())
def test_what_the_documentation_says_was_tried(name: str, geometry: str, warned: bool) -> None:
    package, _, cls = name.rpartition(".")
    if package:
        optimizer_class = getattr(importlib.import_module(package), cls)
    else:  # not on PyPI, or not for this platform: a stand-in with its name, which is all that counts
        optimizer_class = type(cls, (torch.optim.SGD,), {})
    params = [nn.Parameter(torch.zeros(4, 6))]
    # Some want to be told which groups are matrices.
    marked = (package == "pytorch_optimizer" and re.search("Muon|SCION", cls)) or cls == "DistributedMuon"
    groups = [{"params": params, "use_muon": True}] if marked else params
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        optimizer = optimizer_class(groups, lr=0.1, **NEEDED.get(name, {}))
        ours = len(caught_warnings)
        scheduler = AdaptiveWarmup(optimizer, 10)  # which needs no geometry
        silent = len(caught_warnings)
        AdaptiveWarmup.paper(optimizer, 10, target_loss=1.0)
    assert geometry_of(optimizer) == resolve(geometry)
    assert kappa_of(optimizer, resolve(geometry)) == {"spectral": 4, "sign": 24, "frobenius": 1}[geometry]
    assert optimizer.param_groups[0]["lr"] < 0.1  # what the scheduler sets is what the optimizer steps by
    assert not any("geometry" in str(one.message) for one in caught_warnings[ours:silent])
    assert [cls in str(one.message) for one in caught_warnings[silent:]] == [True] * warned
    assert scheduler.phase == "warmup"


@pytest.mark.parametrize(("betas", "geometry"), [((0.9, 0.99), "sign"), ((0.9, 0.0), "frobenius"), (None, "frobenius")])
@pytest.mark.filterwarnings("ignore")
def test_second_moments_are_known_by_the_betas_of_a_class_never_heard_of(betas: Any, geometry: str) -> None:
    class Unheard(torch.optim.Optimizer):
        pass

    assert geometry_of(Unheard(W, {"lr": 0.1, "betas": betas})) == resolve(geometry)


@pytest.mark.parametrize(
    ("cls", "says", "geometry"),
    [
        (torch.optim.RMSprop, "RMSprop is no norm-constrained optimizer", Sign()),
        (torch.optim.SGD, "geometry of SGD is not known: its steps are taken as frobenius geometry", Frobenius()),
    ],
)
def test_any_other_takes_a_geometry_and_it_is_said_once(cls: type, says: str, geometry: Any) -> None:
    with pytest.warns(UserWarning, match=says):
        assert geometry_of(cls(W)) == geometry
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        geometry_of(cls(W))


def test_of_several_the_norm_constrained_comes_first_and_then_adams_kin() -> None:
    a, b = nn.Parameter(torch.zeros(4, 6)), nn.Parameter(torch.zeros(5, 7))
    assert geometry_of(Together(torch.optim.SGD([a]), AdamW([b]), Muon([nn.Parameter(a.clone())]))) == (
        Spectral(method="polar-express")
    )
    with pytest.warns(UserWarning, match="RMSprop is no norm-constrained optimizer"):
        assert geometry_of(Together(torch.optim.SGD([a]), torch.optim.RMSprop([b]))) == Sign()


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
    with pytest.raises(ValueError, match="at least one trained tensor"):
        kappa_of(SignSGD([nn.Parameter(torch.zeros(3))]), Sign())
    frozen, trained = nn.Parameter(torch.zeros(4, 6), requires_grad=False), nn.Parameter(torch.zeros(2, 3))
    assert kappa_of(torch.optim.Muon([frozen, trained]), Spectral()) == 2
    # Fused queries, keys and values count as three matrices, the embedding as one.
    model = nn.ModuleDict({"qkv": nn.Linear(8, 24), "out": nn.Linear(8, 8), "embedding": nn.Embedding(101, 8)})
    opt = Muon.from_model(model, blocks={"qkv": 3})
    assert kappa_of(opt, geometry_of(opt)) == 3 * 8 + 8 + 8


def test_a_geometry_of_ones_own_need_not_be_a_dataclass() -> None:
    class Scaled(Frobenius):
        def __init__(self, scale: float) -> None:
            super().__init__(radius=2.0)
            object.__setattr__(self, "scale", scale)

        def _kappa(self, shape: tuple[int, ...]) -> float:
            return self.scale

    one, ten = Scaled(1.0), Scaled(10.0)
    assert (one != ten, one == Scaled(1.0), hash(one) == hash(Scaled(1.0))) == (True, True, True)
    opt = LMO([{"params": [nn.Parameter(torch.ones(3, 3))], "geometry": geometry} for geometry in (one, ten)])
    assert geometry_of(opt).radius == 1.0
    assert kappa_of(opt, geometry_of(opt)) == 11
