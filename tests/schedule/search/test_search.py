"""``peak="auto"``: the search in a run's first updates, and the run that begins after it."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Lion, find_rate
from tests.schedule.search.search_runs import MAKERS, STEPS, Maker, Run, batches, loss_of, make_model

every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@every_optimizer
def test_the_given_rate_does_not_matter(make: Maker) -> None:
    runs = [Run(make, lr).train(STEPS) for lr in (1e-6, 1e-2, 10.0)]
    peaks = [float(run.scheduler.base_lrs[0]) for run in runs]
    assert peaks[0] == pytest.approx(peaks[1], rel=1e-5)
    assert peaks[2] == pytest.approx(peaks[1], rel=1e-5)
    assert 1e-4 < peaks[1] < 1
    assert {run.scheduler.phase for run in runs} == {"decay"}


@every_optimizer
def test_the_peak_is_that_of_find_rate_on_the_same_losses(make: Maker) -> None:
    run = Run(make).search()
    made = run.scheduler.last_epoch
    model, data = make_model(), batches()
    optimizer = make(model, 0.01)

    def closure() -> torch.Tensor:
        loss = loss_of(model, next(data))
        loss.backward()
        return loss

    found = find_rate(model, optimizer, closure, steps=30, total_steps=STEPS - made)
    assert float(run.scheduler.base_lrs[0]) == pytest.approx(found.guess, rel=1e-6)
    assert len(found.losses) == made


@every_optimizer
def test_the_run_begins_again_where_it_began(make: Maker) -> None:
    run = Run(make)
    first = run.weights()
    run.search()
    made = run.scheduler.last_epoch
    assert 20 < made <= 30
    assert all(torch.equal(a, b) for a, b in zip(run.weights(), first, strict=True))
    assert not any(run.optimizer.state.values())
    # From here on it is the run of a new optimizer at the peak that was found, over the updates that are left.
    peaks = [float(lr) for lr in run.scheduler.base_lrs]
    other = Run(make, peaks[0], STEPS - made, peak="given")
    assert [float(lr) for lr in other.scheduler.base_lrs] == pytest.approx(peaks, rel=1e-6)
    for _ in range(made):
        next(other.data)
    run.train(STEPS - made)
    other.train(STEPS - made)
    assert run.rates[made:] == pytest.approx(other.rates, rel=1e-5)
    for a, b in zip(run.weights(), other.weights(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.long
def test_a_compiled_step_searches_as_the_plain_one_does() -> None:
    def searched(compiled: bool) -> tuple[float, bool]:
        model, data = make_model(), batches()
        first = [p.detach().clone() for p in model.parameters()]
        optimizer = Lion(model.parameters(), lr=torch.tensor(1e-3))
        step = torch.compile(optimizer.step, fullgraph=True) if compiled else optimizer.step
        scheduler = AdaptiveWarmup(optimizer, STEPS, peak="auto")
        while scheduler.phase == "search":
            loss = loss_of(model, next(data))
            loss.backward()
            step()
            scheduler.step(loss.detach())
            optimizer.zero_grad()
        same = all(torch.equal(a, b) for a, b in zip(model.parameters(), first, strict=True))
        return float(scheduler.base_lrs[0]), same

    plain, compiled = searched(False), searched(True)
    assert compiled[0] == pytest.approx(plain[0], rel=0.05)
    assert plain[1] is compiled[1] is True


def test_ratios_between_groups_are_kept() -> None:
    model = make_model()
    first, second, third = (list(layer.parameters()) for layer in (model[0], model[2], nn.Linear(1, 1)))
    groups = [{"params": first, "lr": 1.0}, {"params": second, "lr": 0.25, "warmup": False}]
    optimizer = Lion([*groups, {"params": third, "lr": 0.0}], lr=1.0)
    scheduler, data = AdaptiveWarmup(optimizer, STEPS, peak="auto"), batches()
    phases = set()
    for _ in range(60):
        loss = loss_of(model, next(data))
        loss.backward()
        optimizer.step()
        scheduler.step(loss.detach())
        optimizer.zero_grad()
        phases.add(scheduler.phase)
        first_rate, second_rate, third_rate = scheduler.get_last_lr()
        assert third_rate == 0
        if scheduler.phase == "search":
            assert second_rate == pytest.approx(first_rate / 4)
        if scheduler.phase == "warmup":  # which the second group does without
            assert second_rate == scheduler.base_lrs[1] == pytest.approx(scheduler.base_lrs[0] / 4)
    assert phases >= {"search", "warmup"}


@pytest.mark.parametrize(
    ("losses", "reason"),
    [
        ([2.0, 2.0, math.nan, math.nan, 2.0], "not finite after 2 updates"),
        ([2.0], "never fell clear of its noise"),
        ([2.0 - 0.06 * i for i in range(31)], "has not broken at the highest rate"),
    ],
    ids=["NaN", "level", "falls all the while"],
)
def test_it_goes_on_with_the_given_rate_if_it_cannot_tell(losses: list[float], reason: str) -> None:
    run = Run(lr=0.123)
    with pytest.warns(UserWarning, match=f"no peak rate was found, so the lr stays at 0.123: .*{reason}"):
        run.follow(losses)
    assert run.scheduler.base_lrs[0] == 0.123
    assert run.scheduler.phase == "warmup"


def test_where_noise_hides_the_fall_the_break_tells() -> None:
    run = Run(lr=5.0)
    generator = torch.Generator().manual_seed(0)
    while run.scheduler.phase == "search":
        run.update()
        run.scheduler.step(1 + run.rates[-1] ** 2 + 0.3 * float(torch.randn((), generator=generator)))
    # It breaks within a few updates of rate 2, and 30 updates make e from one to the next 0.64.
    assert 0.005 < float(run.scheduler.base_lrs[0]) < 5


def test_a_skipped_update_and_a_missing_loss_leave_the_rate() -> None:
    run = Run().train(5)
    rate = run.scheduler.get_last_lr()
    loss = loss_of(run.model, next(run.data))
    loss.backward()
    run.scheduler.step(loss.detach())  # and no update, as after a GradScaler that skips it
    assert run.scheduler.get_last_lr() == rate
    run.optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.scheduler.step()
    assert run.scheduler.get_last_lr() == rate
    assert run.train(1).scheduler.get_last_lr()[0] > rate[0]


def test_the_loss_may_come_before_the_update() -> None:
    """The order of Algorithm 1."""
    run = Run()
    first = run.weights()
    for _ in range(STEPS):
        loss = loss_of(run.model, next(run.data))
        loss.backward()
        run.scheduler.step(loss.detach())
        run.optimizer.step()
        run.optimizer.zero_grad()
        if run.scheduler.phase == "search":
            continue
        found = run.scheduler.base_lrs[0]
        break
    assert 1e-4 < found < 1
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(found / 10)
    assert found == pytest.approx(Run().search().scheduler.base_lrs[0], rel=0.01)  # of as many updates less one
    # One update was made since the weights were restored. Its gradient was taken at other weights, so it has no effect.
    run.optimizer.zero_grad()
    decayed = Run(lr=found, peak="given")  # its first update is at a tenth of that
    for p in decayed.model.parameters():
        p.grad = torch.zeros_like(p)
    decayed.optimizer.step()
    assert all(torch.allclose(a, b, rtol=1e-6) for a, b in zip(run.weights(), decayed.weights(), strict=True))
    assert all(torch.allclose(a, b, rtol=1e-2) for a, b in zip(run.weights(), first, strict=True))


def test_a_single_bad_batch_does_not_end_it() -> None:
    bad = Run().train(5)
    bad.update()
    bad.scheduler.step(math.nan)
    assert bad.search().scheduler.last_epoch > 15
    assert bad.scheduler.base_lrs[0] == pytest.approx(Run().search().scheduler.base_lrs[0], rel=0.5)


def test_it_ends_where_a_scaler_skips_every_update() -> None:
    """A loss beyond float32 has infinite gradients."""
    model, data = nn.Linear(8, 1), batches()
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu", init_scale=1.0)
    scheduler = AdaptiveWarmup(optimizer, STEPS, peak="auto", geometry="sign")
    for _ in range(100):
        loss = (model(next(data)).square() * 3).exp().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step(loss.detach())
        optimizer.zero_grad()
    assert scheduler.phase != "search"
    assert scheduler.last_epoch > 90
    assert all(bool(p.isfinite().all()) for p in model.parameters())


class Counting(torch.optim.SGD):
    """Counts its updates in its groups, and keeps a moment of its own."""

    updates, moment = 0, torch.zeros(())

    def step(self, closure: Any = None) -> Any:
        self.updates += 1
        self.moment = self.moment + 1.0
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
        return super().step(closure)


def test_what_optimizers_keep_elsewhere_starts_over_too() -> None:
    run = Run(lambda m, lr: torch.optim.Adagrad(m.parameters(), lr=lr, initial_accumulator_value=0.5), geometry="sign")
    run.search()
    for state in run.optimizer.state.values():
        assert float(state["step"]) == 0
        assert (state["sum"] == 0.5).all()
    counted = Run(lambda m, lr: Counting([{"params": m.parameters(), "count": 0}], lr=lr), geometry="frobenius")
    opt = counted.optimizer
    opt.updates, opt.moment = 0, torch.zeros(())
    counted.search().train(3)
    assert (opt.param_groups[0]["count"], opt.updates, float(opt.moment)) == (3, 3, 3.0)


def test_what_it_says_without_a_ramp() -> None:
    metrics = Run(max_warmup=None, target_loss=0.0).train(3).scheduler.metrics()
    assert metrics.keys() == {"phase", "lr", "share"}


def test_what_it_says_of_itself() -> None:
    run = Run().train(3)
    assert run.scheduler.metrics() == {
        "phase": "search",
        "lr": run.scheduler.get_last_lr()[0],
        "share": run.scheduler.get_last_lr()[0] / 0.01,
    }
    assert "search, update 3 of 120" in repr(run.scheduler)
    run.search()
    assert run.scheduler.metrics()["phase"] == "warmup"
    assert run.scheduler.get_last_lr()[0] == pytest.approx(run.scheduler.base_lrs[0] / 10)
    assert run.optimizer.param_groups[0]["initial_lr"] == run.scheduler.base_lrs[0]


@pytest.mark.parametrize("change", ["extend", "rewarm", "decay_now"])
def test_it_is_not_changed_during_the_search(change: str) -> None:
    run = Run().train(3)
    with pytest.raises(RuntimeError, match="the search for the peak rate is still under way"):
        getattr(run.scheduler, change)(300)
    getattr(run.search().scheduler, change)(300)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"peak": "best"}, 'peak must be "given"'), ({"steps": 99}, "needs a run of at least 100 updates")],
)
def test_arguments_that_do_not_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Run(**options)


def test_a_used_optimizer_is_refused() -> None:
    run = Run(peak="given").train(2)
    run.scheduler = AdaptiveWarmup(run.optimizer, STEPS, peak="auto")
    with pytest.raises(ValueError, match="needs an optimizer that has made no update"):
        run.train(1)


def test_a_captured_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="a captured graph does not see"):
        AdaptiveWarmup(torch.optim.AdamW(make_model().parameters(), capturable=True), STEPS, peak="auto")


@every_optimizer
@pytest.mark.parametrize("given", [0, 1, 12], ids=["no loss", "one", "some"])
def test_without_losses_the_search_ends_and_the_given_rate_is_the_peak(make: Maker, given: int) -> None:
    run = Run(make, 0.01)
    first = run.weights()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for t in range(STEPS):
            if run.scheduler.last_epoch == 30 + given:
                assert run.scheduler.phase == "warmup"
                assert all(torch.equal(a, b) for a, b in zip(run.weights(), first, strict=True))
            loss = run.update()
            run.scheduler.step(*[loss] * (t < given))
    told = [str(one.message) for one in heard]
    assert sum("the search for the peak rate stands still" in one for one in told) == 1
    assert sum("the lr stays at 0.01: step() got too few losses" in one for one in told) == 1
    assert not any("still in warm-up" in one or "time alone" in one for one in told)
    assert max(run.rates) == pytest.approx(0.01)
    assert run.scheduler.phase == "decay"


@pytest.mark.parametrize("tensor", [False, True])
def test_a_group_added_later_keeps_its_ratio_to_the_peak_that_was_found(tensor: bool) -> None:
    run = Run(MAKERS["muon, tensor lr" if tensor else "lion"], lr=1.0).search()
    later, own = (nn.Parameter(torch.ones(8, 8)) for _ in range(2))
    run.optimizer.add_param_group({"params": [later]})
    run.optimizer.add_param_group({"params": [own], "lr": 0.003})
    run.train(5)
    first, added, given = (float(lr) for lr in (run.scheduler.base_lrs[i] for i in (0, -2, -1)))
    assert (added, given) == (pytest.approx(first), pytest.approx(0.003))
    resumed = Run(MAKERS["muon, tensor lr" if tensor else "lion"], lr=1.0)
    state = Run(MAKERS["muon, tensor lr" if tensor else "lion"], lr=1.0).search().scheduler.state_dict()
    resumed.scheduler.load_state_dict(state)
    resumed.optimizer.add_param_group({"params": [later]})
    resumed.train(1)
    assert float(resumed.scheduler.base_lrs[-1]) == pytest.approx(first)


def test_what_follows_in_a_sequence_starts_from_the_peak_that_was_found() -> None:
    model, data = make_model(), batches()
    optimizer = Lion(model.parameters(), lr=1.0)
    ours = AdaptiveWarmup(optimizer, STEPS, peak="auto", decay="wso")
    cooling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=20)
    both = torch.optim.lr_scheduler.SequentialLR(optimizer, [ours, cooling], [STEPS - 20])
    rates = []
    for _ in range(STEPS):
        loss = loss_of(model, next(data))
        loss.backward()
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        optimizer.zero_grad()
        ours.observe(loss.detach())
        both.step()
    assert max(rates[40:]) == ours.base_lrs[0] < 0.1
    assert rates[STEPS - 10] == pytest.approx(ours.base_lrs[0] / 2)
