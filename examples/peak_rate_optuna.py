"""Optuna tunes the peak rate, the one number that is left; bad rates are pruned early."""

import optuna
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Muon

STEPS = 200
torch.manual_seed(0)
x = torch.randn(2048, 32)
y = (x @ torch.randn(32, 10)).argmax(dim=1)


def train(trial: optuna.Trial) -> float:
    """A run at the trial's rate; returns its mean loss over the last tenth."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    opt = Muon.from_model(model, lr=trial.suggest_float("lr", 1e-4, 1.0, log=True))
    sched = AdaptiveWarmup(opt, total_steps=STEPS)
    losses = []
    for step in range(STEPS):
        batch = torch.randint(len(x), (128,))
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        opt.step()
        sched.step(loss)
        opt.zero_grad()
        losses.append(loss.item())
        trial.report(losses[-1], step)
        if trial.should_prune():
            raise optuna.TrialPruned
    trial.set_user_attr("warmup_steps", sched.warmup_steps)
    return sum(losses[-STEPS // 10 :]) / (STEPS // 10)


optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(
    sampler=optuna.samplers.TPESampler(seed=0), pruner=optuna.pruners.MedianPruner(n_warmup_steps=STEPS // 2)
)
study.optimize(train, n_trials=12)
best = study.best_trial
print(
    f"peak rate {best.params['lr']:.2g}: loss {best.value:.3f}, warm-up took {best.user_attrs['warmup_steps']} updates"
)
