"""The rule as an optax transformation, held to the rule in plain numbers."""

import math
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from autowarm import AdaptiveWarmup, Lion, Muon, NormSGD
from autowarm.jax import AdaptiveWarmupState, adaptive_warmup
from autowarm.schedule import core
from autowarm.schedule.shapes import decay_shape

PAST_THE_END = 5


def by_jax(losses: np.ndarray, total: int, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """The share of each update, and what ended as the warm-up, for rows of losses; by updates of a loss each."""
    optimizer = adaptive_warmup(optax.sgd(1.0), total, **options)

    def step(state: AdaptiveWarmupState, loss: jax.Array) -> tuple[AdaptiveWarmupState, jax.Array]:
        updates, state = optimizer.update(jnp.ones(()), state, value=loss)
        return state, -updates

    def run(row: jax.Array) -> tuple[jax.Array, jax.Array]:
        state, shares = jax.lax.scan(step, optimizer.init(jnp.ones(())), row)
        return shares, state.decay_start

    shares, ends = jax.jit(jax.vmap(run))(jnp.asarray(losses))
    return np.asarray(shares), np.asarray(ends)


def by_core(row: np.ndarray, total: int, *, trained: bool = False, **options: Any) -> tuple[list[float], int]:
    plan = core.Plan(total, **options | {"decay": decay_shape(options.get("decay", "cosine"))})
    state, shares = core.settle(plan, core.begin(plan), trained), []
    for update, loss in enumerate(row.tolist(), 1):
        shares.append(state.share)
        state = core.advance(plan, state, update, loss)
    return shares, -1 if state.decay_start is None else state.decay_start


def noisy(draw: random.Random, total: int) -> list[float]:
    """A falling loss with noise, some losses that are not finite, and some without a label."""
    start = draw.choice([0.7, 2.3, 10.9])
    end, pace, noise = draw.uniform(0.02, 0.7) * start, draw.uniform(0.02, 0.6) * total, draw.choice([0.02, 0.1, 0.4])
    missing, empty = draw.choice([0.0, 0.02, 0.2]), draw.choice([0.0, 0.0, 0.1])
    row = []
    for t in range(total + PAST_THE_END):
        fallen = end + (start - end) * math.exp(-t / pace)
        kind = draw.random()
        loss = fallen * max(0.05, 1.0 + noise * draw.gauss(0.0, 1.0))
        unlabelled = t > 0 and kind > 1.0 - empty  # a first loss of zero is not above a target_loss: an error
        row.append(draw.choice([math.nan, math.inf]) if kind < missing else 0.0 if unlabelled else loss)
    return row


@pytest.mark.long
def test_two_hundred_random_curves_have_the_rule_s_shares() -> None:
    draw = random.Random(0)
    same = 0
    for i, decay in enumerate(("cosine", "linear", "1-sqrt", "power", "wsd", "wso", "cosine", "cosine")):
        total = round(50 * 160 ** (i / 7))  # 50 to 8,000
        options = {"decay": decay, "div": (10.0, 3.0)[i % 2], "final_ratio": (0.0, 0.1)[i // 2 % 2]}
        options |= {"target_loss": (None, 0.01)[i // 4], "trained": i in (2, 5)}
        losses = np.array([noisy(draw, total) for _ in range(25)], np.float32)
        shares, ends = by_jax(losses, total, **options)
        for row, ours, end in zip(losses, shares, ends, strict=True):
            theirs, their_end = by_core(row, total, **options)
            if end == their_end:
                same += 1
                np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=1e-5)
    assert same >= 199


T = 60
FALLING = [2.0 * math.exp(-t / 15) for t in range(T + PAST_THE_END)]


def changed(changes: dict[int, float]) -> list[float]:
    return [changes.get(t, loss) for t, loss in enumerate(FALLING)]


ROWS = {
    "nothing unusual": FALLING,
    "no loss is finite": [math.nan] * len(FALLING),
    "none is finite at first": changed(dict.fromkeys(range(7), math.nan)),
    "the first is an outlier": changed({0: 30.0, 1: 20.0}),
    "a loss about zero": [(-1.0) ** t * (1.0 + t / 9) for t in range(len(FALLING))],
    "first losses without a scale": changed({2: 0.1, 4: 0.2}),
    "losses below zero": [loss - 2.5 for loss in FALLING],
    "all are zero": [0.0] * len(FALLING),
    "zeros in the opening": changed({0: 0.0, 3: 0.0, 4: 1e-4}),
    "zeros for good": changed(dict.fromkeys(range(11, T), 0.0)),
    "every third is zero": changed(dict.fromkeys(range(10, T, 3), 0.0)),
    "the last of the opening are at f*": changed({8: 0.9, 9: 0.8}),
    "a gap in the losses": changed(dict.fromkeys(range(11, 20), math.inf)),
    "none is finite at the ramp's end": changed(dict.fromkeys(range(25, 35), math.nan)),
}


@pytest.mark.parametrize(
    ("total", "options"), [(T, {}), (T, {"target_loss": 0.95}), (T, {"trained": True}), (8, {}), (1, {})]
)
def test_an_unusual_stream_has_the_rule_s_shares(total: int, options: dict[str, Any]) -> None:
    target = options.get("target_loss", -math.inf)  # if the first loss is not above it, the rule raises an error
    chosen = {name: row for name, row in ROWS.items() if next(filter(math.isfinite, row), math.inf) > target}
    rows = np.array(list(chosen.values()), np.float32)
    shares, ends = by_jax(rows, total, **options)
    for name, row, ours, end in zip(chosen, rows, shares, ends, strict=True):
        theirs, their_end = by_core(row, total, **options)
        np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=1e-5, err_msg=name)
        assert end == their_end, name


@pytest.mark.parametrize(("geometry", "make"), [("sign", Lion), ("spectral", Muon), ("frobenius", NormSGD)])
def test_each_geometry_has_the_shares_of_the_torch_schedule(geometry: str, make: Callable[..., Any]) -> None:
    optimizer = make([torch.nn.Parameter(torch.ones(2, 2))], lr=1.0)
    schedule, row, shares = (
        AdaptiveWarmup(optimizer, T, trained=False, peak_limit=None),
        np.array(FALLING[:T], np.float32),
        [],
    )
    for loss in row.tolist():
        shares.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step(loss)
    [ours], [end] = by_jax(row[None], T, geometry=geometry)
    np.testing.assert_allclose(ours, shares, rtol=0.0, atol=1e-5)
    assert end == schedule.warmup_steps
    assert (end < by_jax(row[None], T)[1][0]) == (geometry != "sign")


def test_a_resumed_run_is_equal_compiled_or_not() -> None:
    optimizer = adaptive_warmup(optax.adam(0.1), T)
    compiled = jax.jit(lambda grads, state, loss: optimizer.update(grads, state, value=loss))
    params = {"a": jnp.ones(3), "b": jnp.ones((2, 2), jnp.bfloat16)}
    states = [optimizer.init(params) for _ in range(2)]
    for t, loss in enumerate(FALLING[:30]):
        if t in (0, 10, 20):  # the second is saved as arrays and restored
            leaves, tree = jax.tree.flatten(states[1])
            states[1] = jax.tree.unflatten(tree, [np.array(leaf) for leaf in leaves])
        grads = jax.tree.map(lambda x, t=t: x * (t + 1), params)
        one, other = (compiled(grads, state, loss) for state in states)
        jax.tree.map(np.testing.assert_array_equal, one, other)
        if t in (0, 25):  # in the warm-up and in the decay: each takes a fifth of a second
            plain = optimizer.update(grads, states[0], value=loss)
            jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0.01), plain[0], one[0])
        assert [x.dtype for x in jax.tree.leaves(one)] == [x.dtype for x in jax.tree.leaves((params, states[0]))]
        states = [one[1], other[1]]
    assert states[0].decay_start > 0


@pytest.mark.parametrize(
    ("inner", "step", "norm"),
    [(optax.lion, "lmo", 8.0), (optax.adam, "adam", 0.35 * 8.0), (optax.lion, None, 0.0)],
)
@pytest.mark.parametrize(("weight", "size"), [(0.3, 2.4), (0.01, math.sqrt(8 / 3)), (0.0, math.inf)])
def test_a_peak_is_limited_by_the_weights(
    inner: Any, step: str | None, norm: float, weight: float, size: float
) -> None:
    params = {"w": weight * jnp.ones((8, 8))}
    grads = {"w": jnp.where(jnp.arange(64).reshape(8, 8) % 2, 1.0, -1.0)}
    for lr, acts in ((0.5, True), (1e-3, False)):
        expected = 2.5 * size / (lr * norm) / T**0.5 if acts and step and weight else 1.0
        limited = adaptive_warmup(inner(lr), T, step=step)
        free = adaptive_warmup(inner(lr), T, step=step, peak_limit=None)
        states, update = [one.init(params) for one in (limited, free)], jax.jit(limited.update)
        for _ in range(3):
            one, states[0] = update(grads, states[0], params, value=3.0)
            other, states[1] = free.update(grads, states[1], params, value=3.0)
            np.testing.assert_allclose(one["w"], expected * other["w"], rtol=1e-4)
        assert float(states[0].limit) == pytest.approx(expected, rel=1e-4)
    if step:
        with pytest.raises(ValueError, match=r"call update\(grads, state, params, value=loss\)"):
            limited.update(grads, states[0], value=3.0)


def test_an_open_end_and_a_decay_of_one_s_own() -> None:
    optimizer = adaptive_warmup(optax.sgd(1.0), None, decay=lambda p: 1.0 + 0.0 * p)
    assert optimizer.init(jnp.ones(())).share == jnp.float32(0.1)
    row, own = np.array([FALLING], np.float32), {"decay": lambda p: jnp.exp(-3.0 * p)}
    np.testing.assert_allclose(by_jax(row, T, **own)[0][0], by_core(row[0], T, **own)[0], rtol=0.0, atol=1e-5)


@pytest.mark.long
def test_it_works_without_torch_and_says_what_to_install(python_without: Callable[..., str]) -> None:
    code = """
import sys, jax, optax
from autowarm.jax import adaptive_warmup
optimizer = adaptive_warmup(optax.sgd(1.0), 10)
print(optimizer.update(1.0 * jax.numpy.ones(2), optimizer.init(jax.numpy.ones(2)), value=2.0)[0])
for missing in ("optax", "jax"):
    sys.modules.pop("autowarm.jax", None)
    sys.modules[missing] = None
    try:
        import autowarm.jax
    except ImportError as problem:
        print(problem)
"""
    said = "autowarm.jax needs jax and optax: pip install '.[jax]' in a checkout of autowarm"
    assert python_without(["torch"], code).splitlines() == ["[-0.1 -0.1]", said, said]
