"""Hypothesis strategies: problems and families with drawn constants."""

import math

import torch
from hypothesis import strategies as st

from autowarm.geometry import Frobenius, Sign, Spectral
from autowarm.theory import LINEAR, CompositeProblem, barrier, regression_family

seeds = st.integers(0, 2**20)
gaps = st.floats(-2, 2).map(lambda exponent: 10.0**exponent)
outers = st.one_of(st.just(LINEAR), st.floats(0.4, 6.0).map(barrier))
scales = st.floats(-1, 1).map(lambda exponent: 10.0**exponent)
ripples = st.one_of(st.just(0.0), st.floats(0.05, 0.95))
frequencies = st.floats(0.1, 20.0)
geometries = st.sampled_from(
    [
        (Frobenius(), (1,)),
        (Frobenius(2.0), (3,)),
        (Sign(), (2,)),
        (Sign(0.5), (2, 2)),
        (Spectral(), (2, 2)),
        (Spectral(0.7), (2, 3)),
    ]
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@st.composite
def problems(draw):
    geometry, shape = draw(geometries)
    g = generator(draw(seeds))
    x_star = torch.randn(shape, generator=g, dtype=torch.float64)
    noise = torch.randn(x_star.numel(), x_star.numel(), generator=g, dtype=torch.float64)
    features = torch.eye(x_star.numel(), dtype=torch.float64) + draw(st.sampled_from([0.0, 0.2])) * noise
    return CompositeProblem(
        geometry, x_star, draw(outers), draw(scales), features * draw(scales), draw(ripples), draw(frequencies)
    )


@st.composite
def families(draw):
    g = generator(draw(seeds))
    rows = torch.randn(draw(st.integers(1, 6)), 3, generator=g, dtype=torch.float64)
    x_star = torch.randn(3, generator=g, dtype=torch.float64)
    return regression_family(
        rows, x_star, draw(outers), scale=draw(scales), ripple=draw(ripples), frequency=draw(frequencies)
    )


def domain_radius(family):
    """Within it of x* every f_ξ is finite, whatever Φ: q_ξ ≤ L·D²/2 < 1."""
    return math.sqrt(2 / max(f.L for f in family.components))
