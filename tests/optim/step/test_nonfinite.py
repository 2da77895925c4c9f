"""Gradients that are not finite, too large or outliers: the whole update is skipped and counted."""

import copy
import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import LMO
from autowarm.optim.step import nonfinite, outliers
from tests.cases import each
from tests.optim.makers import CLASSES, EVERY, draw_gradients, drawn, said_by

OF_MODELS = [name for name in EVERY if "adamw" not in name]  # whose Muon has a part for AdamW
every_optimizer = pytest.mark.parametrize("name", EVERY)


@pytest.fixture(params=["host", "device"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On a device flags are never read, so that masks are always in effect; here the same is done on the host."""
    if request.param == "device":
        for module in (nonfinite, outliers):
            monkeypatch.setattr(module, "read_on_host", lambda device: False)
    return request.param


def snapshot(opt: LMO) -> dict[torch.Tensor, list[torch.Tensor]]:
    """Of each tensor, itself and all of its state."""
    params = [p for group in opt.param_groups for p in group["params"]]
    return {p: [p.detach().clone(), *(copy.deepcopy(t) for t in opt.state[p].values())] for p in params}


def is_as_before(opt: LMO, before: dict[torch.Tensor, list[torch.Tensor]]) -> bool:
    now = {p: [p, *opt.state[p].values()] for p in before}
    return all(len(now[p]) == len(was) and all(map(torch.equal, now[p], was)) for p, was in before.items())


@pytest.mark.parametrize("lr", [0.02, torch.tensor(0.02)], ids=["float lr", "tensor lr"])
@pytest.mark.parametrize("name", OF_MODELS)
@each("value", [math.nan, -math.inf, 1e21])
def test_one_skips_the_whole_update_and_the_next_is_made(
    name: str, lr: float | torch.Tensor, value: float, where: str
) -> None:
    """1e21 is finite, and its square is not: AdamW's second moment would stay infinite, and Muon's momentum huge."""

    def make(model: nn.Module) -> LMO:
        exact = {"dtype": torch.float32} if "muon" in name else {}
        return EVERY[name].of_model(model, lr, weight_decay=0.1, **exact)

    model = nn.Sequential(nn.Linear(12, 20), nn.Linear(20, 20), nn.Linear(20, 12))
    opt = make(model)
    for seed in range(3):
        draw_gradients(model, seed)
        opt.step()
    twin, twin_opt = copy.deepcopy((model, opt))
    before, messages = snapshot(opt), []
    for hit in (model[1].weight, model[2].bias):
        draw_gradients(model, 3)
        hit.grad.view(-1)[3] = value
        messages += said_by(opt.step)
        assert is_as_before(opt, before)
    assert [one.partition(",")[0] for one in messages] == [f"{type(opt).__name__}: a gradient is not finite"]
    assert opt.skipped_updates == 2
    for one, step in ((model, opt.step), (twin, twin_opt.step)):
        draw_gradients(one, 3)
        step()
    for (called, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, msg=called)
        assert not torch.equal(p, before[p][0])
    make(copy.deepcopy(model)).load_state_dict(copy.deepcopy(opt.state_dict()))  # what is saved can be loaded


@pytest.mark.parametrize("cls", CLASSES)
@each(
    ("most", "values"),  # of the gradients of each update, whose last raises if there is a limit
    [
        (1, [math.nan]),
        (2, [math.nan, None, math.inf]),  # an update without gradients is none
        (3, [math.nan, math.inf, 1.0, *[math.nan] * 3]),
        (None, [math.nan] * 60),
    ],
)
def test_it_is_said_once_and_too_many_in_a_row_are_an_error(
    cls: type[LMO], most: int | None, values: list[float | None], where: str
) -> None:
    p = nn.Parameter(torch.ones(3, 3))
    opt = cls([p], lr=0.1, max_nonfinite=most, warn_unused=False)

    def step(value: float | None) -> None:
        p.grad = None if value is None else torch.full_like(p, value)
        opt.step()

    *others, last = values if most else [*values, 1.0]
    late = where == "device"  # of which the host learns an update later
    others += [last] * (late and most is not None)
    messages = said_by(lambda: [step(value) for value in others])
    assert len(messages) == (len(others) > late)
    assert opt.skipped_updates == sum(value is not None and not math.isfinite(value) for value in others)
    if most:
        with pytest.raises(RuntimeError, match=f"gradients were not finite in {most} updates in a row"):
            said_by(lambda: step(last))
    assert p.isfinite().all()


# ``skip_outliers``: an update whose gradients are far larger than those before is skipped, and no run starves.


def a_run(name: str, sizes: Iterable[float], **options: Any) -> tuple[LMO, nn.Parameter, list[int]]:
    """Steps under gradients of about these sizes; returns which of them left the weights where they were."""
    p = nn.Parameter(torch.ones(8, 8))
    opt = EVERY[name]([p], lr=0.01, **options)
    return opt, p, go_on(opt, p, sizes)


def go_on(opt: LMO, p: nn.Parameter, sizes: Iterable[float]) -> list[int]:
    stayed = []
    for t, size in enumerate(sizes):
        before = snapshot(opt)
        p.grad = size * drawn([(8, 8)], t)[0]
        said_by(opt.step)
        if torch.equal(p, before[p][0]):
            stayed.append(t)
            assert is_as_before(opt, before)  # no momentum and no count either
    return stayed


USUAL = [1.0] * 100


@every_optimizer
def test_one_far_update_is_skipped_and_counted_and_it_is_off_by_default(name: str, where: str) -> None:
    sizes = [*USUAL, 30.0, *USUAL[:20]]
    for limit, stayed in ((6.0, [100]), (1000.0, []), (None, [])):
        opt, _, indices = a_run(name, sizes, skip_outliers=limit)
        assert indices == stayed
        assert opt.skipped_updates == len(stayed)


@each(
    ("sizes", "skipped"),
    [
        ([1.0] * 30 + [30.0], []),  # too early to tell
        ([*USUAL, 1.02], []),  # no outlier, though equal gradients have no deviation
        ([*USUAL, 12.0], []),  # healthy norms have long tails
        ([*USUAL, *[30.0] * 40], [100]),  # which is usual from now on
        ([*USUAL, *(20.0**i for i in range(1, 12))], [100, 110]),  # at most one in ten
        ([*USUAL, math.nan, math.nan, 30.0, 1.0, 30.0], [100, 101, 102]),  # NaN is another matter
    ],
)
def test_a_change_for_good_starves_no_run(sizes: list[float], skipped: list[int], where: str) -> None:
    most = 3 if any(map(math.isnan, sizes)) else 1  # no veto counts as divergence
    opt, _, indices = a_run("lion", sizes, skip_outliers=6.0, max_nonfinite=most)
    assert indices == skipped
    assert opt.skipped_updates == len(indices)


@every_optimizer
@each("by_state", [True, False])
def test_what_it_has_seen_is_saved_and_copied(name: str, by_state: bool, where: str) -> None:
    opt, p, _ = a_run(name, USUAL, skip_outliers=6.0)
    q, other = copy.deepcopy((p, opt))
    if by_state:
        other = EVERY[name]([q], lr=0.01, skip_outliers=6.0)
        other.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert go_on(opt, p, [30.0, 1.0]) == go_on(other, q, [30.0, 1.0]) == [0]
    assert torch.equal(p, q)


def test_a_state_from_before_the_first_update_has_seen_nothing():
    opt, p, _ = a_run("lion", USUAL, skip_outliers=6.0)
    opt.load_state_dict(EVERY["lion"]([p], lr=0.01, skip_outliers=6.0).state_dict())
    assert go_on(opt, p, [30.0, 1.0]) == []
