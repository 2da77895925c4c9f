"""The polar factors, exact and iterated: their bands, and every fast path against the plain formulas."""

import functools
import math
import weakref
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from autowarm.orthogonalize import orthogonalize, orthogonalize_, spectral_norm, working_dtype
from autowarm.orthogonalize.coefficients import JORDAN, POLAR_EXPRESS_FLOOR, _best_quintic, polar_express
from autowarm.orthogonalize.iterate import plan
from autowarm.orthogonalize.precision import product_precision
from tests.cases import each
from tests.reference import orthogonalize_reference

ITERATIVE = ["newton-schulz", "polar-express"]
ALL = ["svd", *ITERATIVE]


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def band(schedule, low, high):
    """The smallest and the largest value to which a schedule maps [low, high], in exact arithmetic."""
    x = np.geomspace(low, high, 100_001)
    for a, b, c in schedule:
        x = x * (a + x * x * (b + x * x * c))
    return float(x.min()), float(x.max())


@functools.cache
def highest(steps):
    """The largest value to which so many steps map those that they are made for."""
    return band(polar_express(steps), POLAR_EXPRESS_FLOOR[steps], 1.0)[1]


@each(
    ("schedule", "floor", "low", "high"),
    [
        *((polar_express(steps), floor, 0.77, 1.23) for steps, floor in POLAR_EXPRESS_FLOOR.items()),
        (polar_express(4), 3e-3, 0.78, 1.22),  # which the documentation promises, as the next two
        (polar_express(5), 1e-3, 0.86, 1.14),
        ([JORDAN] * 5, 2e-3, 0.65, 1.25),
    ],
)
def test_a_schedule_keeps_to_its_band_from_its_floor_up(schedule, floor, low, high):
    least, most = band(schedule, floor, 1.0)
    assert low < least < 1 < most < high
    # And with the room that rounding gets, it does not take off.
    assert band(schedule, floor, 1.005)[1] < 1.25


@given(st.floats(1e-4, 0.3), st.integers(0, 2))
def test_each_quintic_is_the_best_of_its_interval(floor, which):
    (a, b, c), _ = _best_quintic(floor, 1.01)
    error = max(abs(1 - x) for x in band([(a, b, c)], floor, 1.01))
    for nudge in (-1e-3, 1e-3):
        other = [a, b, c]
        other[which] *= 1 + nudge
        assert max(abs(1 - x) for x in band([tuple(other)], floor, 1.01)) > error


@each("method", ITERATIVE)
@each("steps", [1, 2, 3, 4, 5, 7])
@each("shape", [(16, 16), (8, 20), (20, 8), (8, 40), (1, 9), (9, 1), (1, 1)])
def test_fast_equals_reference(method, steps, shape):
    G = draw(*shape)
    exact = orthogonalize_reference(G, method=method, steps=steps)
    torch.testing.assert_close(orthogonalize(G, method=method, steps=steps, dtype=torch.float64), exact)
    single = orthogonalize(G.float(), method=method, steps=steps, dtype=torch.float32)
    torch.testing.assert_close(single.double(), exact, atol=2e-4, rtol=2e-4)


def with_spectra(spectra, shape):
    """A matrix of this shape for each row of singular values."""
    U, V = (torch.linalg.qr(draw(side, min(shape), seed=side)).Q for side in shape)
    return ((U * spectra[:, None]) @ V.mT).float()


# Where the first quintics have their inner peaks, to which rounding errors add.
PEAKS = torch.tensor([0.37, 0.09, 0.0225, 0.0065], dtype=torch.float64)


def adversarial(shape):
    """Power laws, repeated singular values, few of them, and beside a dominant one."""
    i, half = torch.arange(1.0, min(shape) + 1, dtype=torch.float64), min(shape) // 2
    values = [torch.exp(-5 * i / len(i)), *(i**-power for power in (0.25, 0.5, 0.75, 1.0, 2.0, 4.0))]
    values += [torch.where(i <= rank, 1.0, 0.0) for rank in (1, 2, 8, half)]
    values += [torch.where(i <= rank, 1.0, peak) for rank in (1, half) for peak in (*PEAKS, 0.3, 0.05)]
    return with_spectra(torch.stack(values), shape)


def dominated(values, rows, shape):
    """Matrices with one singular value of 1 and, for each of these values, others around it, on so many rows."""
    short = min(shape)
    spectra = torch.full((len(values), short), 1e-3, dtype=torch.float64)
    spectra[:, 1:rows] = values[:, None] * torch.linspace(0.98, 1.02, rows - 1, dtype=torch.float64)
    spectra[:, 0] = 1.0
    U = torch.eye(short, dtype=torch.float64).repeat(len(values), 1, 1)
    U[:, :rows, :rows] = torch.linalg.qr(draw(len(values), rows, rows, seed=1)).Q
    V = torch.linalg.qr(draw(len(values), max(shape), short)).Q
    return ((U * spectra[:, None]) @ V.mT).float()


def small(shape):
    """So many matrices that the errors of few elements do not average out in all of them."""
    return draw(30_000 // (shape[0] * shape[1]), *shape).float()


class ReducedProducts(TorchDispatchMode):
    """Makes products in single precision as TensorFloat-32 does, of operands rounded to 10 bits."""

    PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in self.PRODUCTS:
            added = len(args) - 2
            args = (*args[:added], *(self.rounded(x) for x in args[added:]))
        return func(*args, **(kwargs or {}))

    @staticmethod
    def rounded(x):
        if x.dtype != torch.float32:
            return x
        mantissa, exponent = torch.frexp(x)
        return torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)


@contextmanager
def products_in(setting):
    """Products of single precision are allowed to be made in less, and are."""
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = setting
    with ReducedProducts() if setting in REDUCED else nullcontext():
        yield
    torch.backends.mkldnn.matmul.fp32_precision = before


HALVES, DTYPES = [torch.bfloat16, torch.float16], [torch.bfloat16, torch.float16, torch.float32]
REDUCED, PLAIN = ["bf16", "tf32"], [torch.backends.mkldnn.matmul.fp32_precision]
NEAR = (PEAKS[:, None] * torch.linspace(0.85, 1.15, 8, dtype=torch.float64)).flatten()
# Matrices, steps, dtypes, how products are made, and how far above its band a singular value may end.
ROUNDED = {
    **{f"larger {shape}": (partial(adversarial, shape), (3, 4, 5, 6), HALVES[:1], PLAIN, 0.05)
       for shape in ((128, 128), (352, 128), (128, 384), (320, 160))},
    **{f"larger {shape}, reduced": (partial(adversarial, shape), (4, 6), DTYPES[2:], REDUCED, 0.05)
       for shape in ((128, 352), (352, 128), (128, 128))},
    # Of every plan: single iterations, two at the end in half precision, segments in single precision.
    **{f"adversarial {shape}": (partial(adversarial, shape), (4, 5, 6), DTYPES, PLAIN, 0.035)
       for shape in ((65, 65), (72, 160), (240, 72), (66, 11_008), (12, 512))},
    **{f"beside a dominant direction, {rows} rows of {shape}": (partial(dominated, NEAR, rows, shape), (4, 8), DTYPES,
                                                                PLAIN, 0.05)
       for rows in (3, 8, 65) for shape in ((65, 65), (80, 160))},
    **{f"beside one, {rows} rows of many": (partial(dominated, PEAKS[0].expand(2000), rows, (17, 17)), (4, 5, 8),
                                            HALVES[:1], PLAIN, 0.05)
       for rows in (2, 3, 4)},
    **{f"small {shape}": (partial(small, shape), (4, 5), HALVES, PLAIN, 0.08)
       for shape in ((2, 2), (2, 8), (8, 3), (4, 4), (6, 6), (8, 8), (16, 16), (17, 17))},
    **{f"small {shape}, reduced": (partial(small, shape), (4,), DTYPES[::2], REDUCED, 0.08)
       for shape in ((2, 2), (2, 8), (8, 3), (4, 4), (16, 16))},
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if "11008" in name else name for name in ROUNDED]
)
def test_rounding_takes_no_singular_value_far_beyond_its_band(name):
    make, some_steps, dtypes, settings, room = ROUNDED[name]
    stack = make()
    for steps, dtype, setting in product(some_steps, dtypes, settings):
        with products_in(setting):
            out = orthogonalize(stack, steps=steps, dtype=dtype)
        # A matrix that took off may have become NaN, of which nothing is larger.
        assert spectral_norm(out).nan_to_num(math.inf).max() < highest(steps) + room, (steps, dtype, setting)


@each("method", ALL)
@each("shape", [(5, 12, 12), (5, 8, 24), (5, 24, 8)])
def test_batched_equals_looped(method, shape):
    stack = draw(*shape)
    looped = torch.stack([orthogonalize(G, method=method, dtype=torch.float64) for G in stack])
    torch.testing.assert_close(orthogonalize(stack, method=method, dtype=torch.float64), looped)


@each("method", ITERATIVE)
def test_an_optimizers_stack_is_iterated_in_place_and_its_first_memory_freed(method):
    G = draw(3, 16, 8, seed=1)
    X = G.clone()
    freed = weakref.ref(X.untyped_storage())
    orthogonalize_(X, method=method)
    assert X.is_contiguous()
    assert freed() is None
    torch.testing.assert_close(X, orthogonalize(G, method=method, dtype=torch.float64))


@each("method", ITERATIVE)
@each("dtype", [torch.bfloat16, torch.float32, torch.float16])
@each("shape", [(16, 16), (80, 200)])
def test_no_magnitude_takes_off_and_ordinary_ones_do_not_matter(method, dtype, shape):
    G = draw(*shape)
    usual = orthogonalize(G, method=method, dtype=torch.float64).norm()
    known = range(-15, 15)  # of all dtypes, because float16 is entered after the division by the norm
    for exponent in range(-46, 38):
        out = orthogonalize((G * 10.0**exponent).float(), method=method, dtype=dtype)
        assert out.norm() < 1.25 * min(shape) ** 0.5, exponent
        if exponent in known:
            assert out.norm() > 0.9 * usual, exponent


@each("method", ALL)
@each("shape", [(0, 4), (4, 0), (0, 3, 4), (2, 0, 4), (2, 4, 0)])
def test_empty_and_zero_matrices_stay_as_they_are(method, shape):
    assert orthogonalize(torch.zeros(shape), method=method).shape == shape
    assert not orthogonalize(torch.zeros(3, 5), method=method).any()


@given(st.integers(1, 12), st.floats(1, 20), st.sampled_from([torch.bfloat16, torch.float32, torch.float64]))
def test_a_plan_makes_all_steps_and_never_costs_more_than_the_plain_order(steps, aspect, precision):
    segments = plan(steps, aspect, precision)
    assert sum(segments) == steps
    cost = sum(4 * aspect + 8 * length - 6 for length in segments)
    assert cost <= steps * (4 * aspect + 2) * (1 + 1e-12)
    assert max(segments) <= {torch.bfloat16: 2, torch.float32: 4, torch.float64: 8}[precision]
    assert precision != torch.bfloat16 or set(segments[:-1]) <= {1}


@pytest.mark.parametrize(("device", "backend"), [("cpu", "mkldnn"), ("cuda", "cuda")])
def test_the_precision_of_products_is_what_the_devices_backend_is_set_to(device, backend):
    switch = getattr(torch.backends, backend).matmul
    before = switch.fp32_precision
    try:
        for setting, expected in (("ieee", torch.float32), ("tf32", torch.bfloat16)):
            switch.fp32_precision = setting
            assert product_precision(torch.float32, torch.device(device)) is expected
            assert product_precision(torch.float64, torch.device(device)) is torch.float64
    finally:
        switch.fp32_precision = before


def test_without_bfloat16_instructions_single_precision_is_used(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_bf16": False}, raising=False)
    assert working_dtype.__wrapped__(torch.device("cpu")) is torch.float32
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    assert working_dtype.__wrapped__(torch.device("cpu")) is torch.bfloat16


@each("shape", [(8, 8), (4, 9), (9, 4), (1, 5), (5, 1), (2, 3, 6, 4)])
def test_svd_is_the_polar_factor(shape):
    G = draw(*shape)
    Q = orthogonalize(G, method="svd")
    small = min(shape[-2:])
    gram = Q @ Q.mT if shape[-2] <= shape[-1] else Q.mT @ Q
    torch.testing.assert_close(gram, torch.eye(small, dtype=G.dtype).expand(gram.shape))
    # Q is nearest to G among orthogonal matrices exactly when QᵀG is symmetric and positive.
    H = Q.mT @ G if shape[-2] >= shape[-1] else G @ Q.mT
    torch.testing.assert_close(H, H.mT)
    assert torch.linalg.eigvalsh(H).min() > 0


@each(
    ("do", "message"),
    [
        (lambda: orthogonalize(torch.ones(3)), r"needs a matrix or a stack of them, got shape \(3,\)"),
        (lambda: orthogonalize(torch.ones(3, 3), method="qr"), "unknown method 'qr'"),
        (lambda: orthogonalize(torch.ones(3, 3), steps=0), "steps must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_input(do, message):
    with pytest.raises(ValueError, match=message):
        do()
