"""κ, and Δ' by the paper's calibration, for the networks of the paper and each norm.

    python examples/calibrate.py

For a network of your own, replace `matrices`: κ counts its trained matrices, each once.
"""

import math
from dataclasses import replace

import torch

from autowarm.geometry import total_kappa
from autowarm.lab.config import RunConfig
from autowarm.lab.config.build import parse
from autowarm.lab.tasks.models import llama
from autowarm.schedule import calibrate

FIRST, DIV, SIGMA_F2 = 10.98, 100, 1e3  # f(x0) that the authors' LLaMA begins with, lr over the first rate, σ_F²
TARGETS = {"muon": ("spectral", 3.3), "lion": ("sign", 3.4), "normsgd": ("frobenius", 4.3)}  # norm and f*

print(
    f"{'preset':<11} {'q, k, v':<9} {'optimizer':<9} {'κ':>13} {'width':>9} {'Δ0':>6} {'Δ′':>6}  warm-up ends at loss"
)
for preset in ("llama-124m", "llama-210m"):
    config = parse(["--config", preset], RunConfig, "train", "").model
    for fused in (True, False):
        with torch.device("meta"):  # without memory for the weights
            network = llama(replace(config, fused_qkv=fused), seed=0)
        matrices = [p for p in network.parameters() if p.ndim == 2]
        for optimizer, (norm, target) in TARGETS.items():
            kappa = total_kappa(matrices, norm)
            profile = calibrate(FIRST - target, lr=1e-3, div=DIV, kappa=kappa, sigma_f2=SIGMA_F2)
            print(
                f"{preset:<11} {'one' if fused else 'three':<9} {optimizer:<9} {kappa:>13,.0f} "
                f"{math.sqrt(SIGMA_F2 / kappa):>9.3g} {profile.gap0:>6.2f} {profile.peak_gap:>6.2f}  "
                f"{target + profile.peak_gap:.2f}"
            )
