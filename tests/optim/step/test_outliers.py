"""``skip_outliers``: an update whose gradients are far larger than those before is skipped, and no run starves."""

import copy
import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from autowarm import LMO, Lion, Muon, NormSGD, SignSGD
from autowarm.optim.step import nonfinite, outliers
from tests.cases import each

MAKERS = {
    "muon": lambda ps, **o: Muon(ps, lr=0.01, **o),
    "adamw part": lambda ps, **o: Muon([{"params": ps, "algorithm": "adamw"}], lr=0.01, **o),
    "lion": lambda ps, **o: Lion(ps, lr=0.01, **o),
    "signsgd": lambda ps, **o: SignSGD(ps, lr=0.01, **o),
    "normsgd": lambda ps, **o: NormSGD(ps, lr=0.01, **o),
    "rows": lambda ps, **o: LMO(ps, lr=0.01, geometry="rows", **o),
}
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@pytest.fixture(params=["host", "device"], autouse=True)
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On a device nothing is read; a processor stands in for one."""
    if request.param == "device":
        for module in (nonfinite, outliers):
            monkeypatch.setattr(module, "read_on_host", lambda device: False)
    return request.param


def a_run(make: Callable, sizes: list[float], **options: object) -> tuple[LMO, nn.Parameter, list[bool]]:
    """Steps under gradients of about these sizes; returns which of them moved the weights."""
    p = nn.Parameter(torch.ones(8, 8))
    opt = make([p], **options)
    return opt, p, go_on(opt, p, sizes)


def go_on(opt: LMO, p: nn.Parameter, sizes: list[float]) -> list[bool]:
    moved = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for t, size in enumerate(sizes):
            before = [p.detach().clone(), *(x.clone() for x in opt.state[p].values())]
            p.grad = size * torch.randn(8, 8, generator=torch.Generator().manual_seed(t))
            opt.step()
            now = [p, *opt.state[p].values()]
            moved.append(not torch.equal(p, before[0]))
            if not moved[-1] and len(before) > 1:
                assert all(map(torch.equal, before, now))  # no momentum and no count either
    return moved


@every_optimizer
def test_one_far_update_is_skipped_and_counted_and_it_is_off_by_default(make: Callable) -> None:
    sizes = [1.0] * 100 + [30.0] + [1.0] * 20
    opt, _, moved = a_run(make, sizes, skip_outliers=6.0)
    assert [t for t, made in enumerate(moved) if not made] == [100]
    assert opt.skipped_updates == 1
    for limit in (1000.0, None):
        opt, _, moved = a_run(make, sizes, skip_outliers=limit)
        assert all(moved)
    assert opt.skipped_updates == 0


@each(
    ("sizes", "skipped"),
    [
        ([1.0] * 30 + [30.0], []),  # too early to tell
        ([1.0] * 100 + [1.02], []),  # no outlier, though equal gradients have no deviation
        ([1.0] * 100 + [12.0], []),  # healthy norms have long tails
        ([1.0] * 100 + [30.0] * 40, range(100, 140, 10)),  # at most one in ten, until it is usual
        ([1.0] * 100 + [math.nan] * 2 + [30.0, 1.0, 30.0], [100, 101, 102]),  # NaN is another matter
    ],
)
def test_a_change_for_good_starves_no_run(sizes: list[float], skipped: list[int]) -> None:
    opt, _, moved = a_run(MAKERS["lion"], sizes, skip_outliers=6.0, max_nonfinite=3)
    found = [t for t, made in enumerate(moved) if not made]
    assert found[: len(skipped)] == [*skipped][: len(found)]
    assert len(found) <= max(len([*skipped]), 0)
    assert opt.skipped_updates == len(found)


def test_vetoes_do_not_count_as_divergence() -> None:
    _, _, moved = a_run(MAKERS["lion"], [1.0] * 100 + [30.0, 1.0], skip_outliers=6.0, max_nonfinite=1)
    assert moved[100] is False


@every_optimizer
@each("way", [lambda opt, other: other.load_state_dict(copy.deepcopy(opt.state_dict())), None])
def test_what_it_has_seen_is_saved_and_copied(make: Callable, way: Callable | None) -> None:
    sizes = [1.0] * 100
    opt, p, _ = a_run(make, sizes, skip_outliers=6.0)
    if way is None:
        q, other = copy.deepcopy((p, opt))
    else:
        q = nn.Parameter(p.detach().clone())
        other = make([q], skip_outliers=6.0)
        way(opt, other)
    assert go_on(opt, p, [30.0, 1.0]) == go_on(other, q, [30.0, 1.0]) == [False, True]
    assert torch.equal(p, q)


@each("wrong", [0, -1.0, math.inf, math.nan, "6"])
def test_a_limit_that_is_none_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="skip_outliers must be a positive number"):
        MAKERS["lion"]([nn.Parameter(torch.zeros(2, 2))], skip_outliers=wrong)
