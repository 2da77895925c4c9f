"""Mistakes that people make: what was typed, and what the message must name, where | stands between several words."""

# ruff: noqa: E501 (what was typed stands on one line)

import math
import shlex
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optax
import pytest
import torch
from torch import nn

import autowarm
from autowarm import geometry, jax, theory
from autowarm.geometry import total_kappa
from autowarm.lab.commands import main
from autowarm.schedule import Profile, calibrate, objective
from autowarm.smoothness import Probe, fit

LETTER = "Dear reader,\nthis is a letter.\n"
LENGTHS = ["warmup_steps", "num_warmup_steps", "warmup_ratio", "warmup_iters", "warm_up_epochs", "n_warmup"]
NO_LENGTH = "{} has no {}: the warm-up sets its own length, and AdaptiveWarmup's max_warmup= limits it"
OUR_OPTIMIZERS = ["Muon", "Lion", "SignSGD", "NormSGD"]
NO_MODEL = "pass the model, not its parameters: a torch.nn.Module is needed, got a "

API = {
    "AdaptiveWarmup()": "'optimizer' and 'total_steps'",
    "AdaptiveWarmup(opt)": "'total_steps'",
    "AdaptiveWarmup(100, opt)": "the optimizer comes first, then total_steps",
    "AdaptiveWarmup(net, 100)": "the first argument is the optimizer, got a Sequential",
    **{f"{call}({given}": "first argument is the optimizer, got a " for call in ("AdaptiveWarmup", "SpikeGuard") for given in ("net.parameters(), 9)", "sched, 9)", "torch.optim.AdamW, 9)", "None, 9)")},
    "AdaptiveWarmup('adamw', 100)": "got a str: the optimizer comes first, such as torch.optim.AdamW(...)",
    **{f"AdaptiveWarmup(opt, {given})": f"total_steps is the text {given}: it must be a whole number of updates" for given in ("'100'", "'1e4'", "''")},
    **{f"AdaptiveWarmup(opt, {given})": "total_steps must be a whole number of updates|, got a " for given in ("[100]", "len", "torch.tensor(10.5)")},
    **{f"AdaptiveWarmup(opt, 100, {given}=1)": "do you mean calibration=autowarm.schedule.Calibration(...)" for given in ("geometry", "kappa", "sigma_f2")},
    "AdaptiveWarmup(opt, 100, model=net)": "do you mean recover=model",
    "AdaptiveWarmup(opt, 100, lr_scheduler_type='cosine')": "do you mean decay",
    "AdaptiveWarmup(opt, 100, div=None)": "div must be greater than 1 and finite, got None",
    "AdaptiveWarmup(opt, 100, peak_limit='off')": 'peak_limit is the text \'off\': it must be positive and finite',
    "AdaptiveWarmup(opt, 0)": "total_steps|updates ≥ 1|got 0",
    "AdaptiveWarmup(opt, math.inf)": 'or None with decay="wso" for a run that decay_now(steps) ends',
    "AdaptiveWarmup(opt, 10.5)": "total_steps|got 10.5",
    "AdaptiveWarmup(opt, True)": "total_steps|got True",
    "AdaptiveWarmup(opt, None)": 'give total_steps|decay="wso"',
    "AdaptiveWarmup(opt, loader)": "total_steps|got a DataLoader",
    "AdaptiveWarmup(opt, 100, 10)": "got 3 values|max_warmup=",
    **{f"AdaptiveWarmup(opt, 100, {name}=10)": NO_LENGTH.format("AdaptiveWarmup", name) for name in LENGTHS},
    "AdaptiveWarmup.paper(opt, 9, target_loss=1.0, warmup_steps=10)": NO_LENGTH.format(
        "AdaptiveWarmup", "warmup_steps"
    ),
    "WarmupTrainer(net, args(folder), warmup_steps=10)": NO_LENGTH.format("WarmupTrainer", "warmup_steps"),
    'WarmupTrainer(net, args(folder), warmup={"warmup_steps": 10})': NO_LENGTH.format("AdaptiveWarmup", "warmup_steps"),
    "transformers.WarmupCallback(None, warmup_steps=10)": NO_LENGTH.format("WarmupCallback", "warmup_steps"),
    "lightning.WarmupCallback(warmup_steps=10)": NO_LENGTH.format("WarmupCallback", "warmup_steps"),
    "WarmupScheduler(Accelerator(cpu=True), opt, 9, warmup_steps=10)": NO_LENGTH.format(
        "WarmupScheduler", "warmup_steps"
    ),
    "AdaptiveWarmup(opt, num_training_steps=100)": "total_steps",
    "AdaptiveWarmup(opt, T_max=100)": "total_steps",
    "AdaptiveWarmup(opt, 100, lr=1e-3)": "the optimizer's lr",
    "AdaptiveWarmup(opt, 100, max_lr=1e-3)": "the optimizer's lr",
    "AdaptiveWarmup(opt, 100, min_lr=1e-5)": "final_ratio",
    "AdaptiveWarmup(opt, 100, eta_min=1e-5)": "final_ratio",
    "AdaptiveWarmup(opt, 100, last_epoch=-1)": "load_state_dict",
    "AdaptiveWarmup(opt, 100, epochs=3)": "total_steps, in updates",
    "AdaptiveWarmup(opt, 100, target_los=3.0)": "do you mean target_loss?",
    'AdaptiveWarmup(opt, 100, decy="wsd")': "do you mean decay?",
    'AdaptiveWarmup(opt, 100, decay="cosin")': "decay|'cosine'",
    'AdaptiveWarmup(opt, 100, decay="constant")': "unknown decay 'constant'|\"wso\" stays at the peak",
    "AdaptiveWarmup(opt, 100, decay=0.1)": "decay|'wsd'",
    'AdaptiveWarmup(opt, 100, warmup="linaer")': "warmup|'linear'",
    "AdaptiveWarmup(opt, 100, warmup=10)": "max_warmup limits its length",
    "AdaptiveWarmup(opt, 100, max_warmup=10.0)": "max_warmup|a share of the run",
    "AdaptiveWarmup(opt, 100, max_warmup=1)": "in (0, 1] (1.0: all of it), a whole number of updates ≥ 2|got 1",
    "AdaptiveWarmup(opt, 100, max_warmup=0.0)": 'updates ≥ 2, "auto", or None, got 0.0',
    "AdaptiveWarmup(opt, 100, max_warmup=True)": "max_warmup is a share of the run|got True",
    'AdaptiveWarmup(opt, 100, max_warmup="10%")': "max_warmup|'10%'",
    "AdaptiveWarmup(opt, 100, final_ratio=2)": "final_ratio|[0, 1]",
    "AdaptiveWarmup(opt, 100, div=1.0)": "div must be greater than 1 and finite, got 1.0",
    'AdaptiveWarmup(opt, 100, target_loss="3")': "target_loss is the text '3': it must be finite",
    'AdaptiveWarmup(opt, 100, div="x")': "div is the text 'x': it must be greater than 1 and finite",
    "autowarm.schedule.Calibration(sigma_f2=0.0)": "sigma_f2 must be positive and finite, got 0.0",
    "AdaptiveWarmup(opt, 100, calibration='sign', peak_gap=1.0)": "calibration= chooses Δ', and so does peak_gap=|leave out one",
    "autowarm.schedule.Calibration(rho=1)": "rho must be above 1 and finite, got 1",
    "autowarm.schedule.Calibration(kappa=-1.0)": "kappa must be positive and finite, got -1.0",
    "AdaptiveWarmup(opt, 100, peak_gap=0.0)": "peak_gap must be positive and finite, got 0.0",
    "AdaptiveWarmup(opt, 100, smoothing=1.0)": 'smoothing is a share of the run, in [0, 1), or "auto", got 1.0',
    "AdaptiveWarmup(opt, 100, trained=1)": "trained must be True, False, or None|got 1",
    "AdaptiveWarmup(opt, 100, recover=1)": 'recover must be True, the model (for several a torch.nn.ModuleList), "warn" to warn only, or False, got 1',
    **{f"SpikeGuard(opt, 100, recover={given})": "recover must be True, " for given in ("'on'", False)},
    **{f"SpikeGuard(opt, {given})": f"total_steps must be a whole number of updates ≥ 1|, got {given}" for given in (0, 2.5)},
    "SpikeGuard(opt, 100, veto=-1)": "veto must be a positive number of standard deviations, such as 6, got -1",
    "SpikeGuard(autowarm.optim.Together(torch.optim.SGD([w]), torch.optim.SGD([net[1].weight])), 9, veto=6.0)": "veto is for one optimizer that is not ours",
    **{f"AdaptiveWarmup(opt, 100, {name}=['cosine'])": f"unknown {name} ['cosine']: use one of " for name in ("decay", "warmup")},
    "AdaptiveWarmup(opt, 100, recover=[net])": "for several a torch.nn.ModuleList|got a list",
    "SpikeGuard(net, 100)": "SpikeGuard's first argument is the optimizer, got a Sequential",
    **{f"SpikeGuard(opt, 100, veto={given})": f"veto must be a positive number of standard deviations, such as 6, got {given}" for given in ("'6'", True)},
    "SpikeGuard(opt, 100, veto=6.0)": "give ours skip_outliers=6",
    "SpikeGuard(opt, None).load_state_dict(SpikeGuard(opt, None).state_dict() | {'updates': 3})": "the SpikeGuard state is damaged",
    "SpikeGuard(opt, None).load_state_dict(sched.state_dict())": "not the state of SpikeGuard: it is that of AdaptiveWarmup",
    **{f"AdaptiveWarmup(Lion([{{'params': [*net.parameters()], 'warmup': {given}}}]), 60)": f"group 0 has warmup={given}: it must be True or False" for given in ("'no'", None)},
    "AdaptiveWarmup(opt, 100, max_nonfinite=0)": "max_nonfinite|at least 1",
    "AdaptiveWarmup(opt, 100, target_loss=5.0).step(4.0)": "f(x0) = 4 is not above the target loss f* = 5",
    "AdaptiveWarmup(opt, 100, target_loss=0.5, peak_gap=3.0).step(2.0)": "between 0 and the first gap f(x0) − f* = 1.5, got 3",
    **{f"AdaptiveWarmup(torch.optim.SGD([{{'params': [w], 'lr': {lr}}}], lr=0.1), 100)": "every group's lr must be finite and not negative, and one positive"
       for lr in ("math.nan", "math.inf", "torch.tensor(math.nan)")},
    "sched.optimizer.param_groups.append({'params': [], 'lr': -0.1}) or sched.step(1.0)": "a parameter group was added with lr=-0.1",
    'AdaptiveWarmup(opt, 100, calibration="muon")': "geometry 'muon'|'spectral'",
    "AdaptiveWarmup(opt, 100, chance_loss=0.0)": "chance_loss must be positive and finite, got 0.0",
    'AdaptiveWarmup(opt, 100, target_loss=float("nan"))': "target_loss|finite",
    "AdaptiveWarmup(opt, 100, target_loss=10**400)": "target_loss must be finite, got 10000",
    "AdaptiveWarmup(torch.optim.SGD(net.parameters(), lr=0.0), 100)": "one positive, got [0.0]: the lr of the optimizer is the peak rate",
    'AdaptiveWarmup(opt, 100, peak="auto")': "find_rate",
    "AdaptiveWarmup(opt, 100, verbose=True)": "no verbose|total_steps",
    "AdaptiveWarmup.paper(opt, 100)": "target_loss",
    "AdaptiveWarmup.paper(opt, 100, target_loss=None)": "Algorithm 1 needs target_loss",
    **{f"AdaptiveWarmup.paper(opt, 300, target_loss=0.1, {given}).step(2.6)": words for given, words in {
        "profile=3.0": "a function of the gap Δ, got 3.0",
        "profile=OWN, calibration='sign'": "and so does profile=: leave out one of them",
        "profile=lambda gap: 1 / (1 + gap)": "needs peak_gap",
        "profile=lambda gap: OWN(gap), peak_gap=1.0": "highest at peak_gap: got 0.|at 2.5, 0",
        **{f"profile=lambda gap: {rate}, peak_gap=1.0": "positive and finite" for rate in ("math.nan", "-1.0", "math.inf")},
    }.items()},
    "sched.step(3)": "a loss, not an epoch",
    'sched.step("0.5")': "a number or a one-element tensor, got str",
    "sched.step(torch.ones(3))": "shape (3,)|mean",
    'sched.step({"loss": 1.0})': 'got dict: pass output["loss"]',
    **{f"{call}(output)": "got ModelOutput: pass output.loss" for call in ("sched.step", "sched.observe", "SpikeGuard(opt, 9).step")},
    **{f"sched.step({given})": ": call it" for given in ("w.mean().item", "nn.MSELoss()", "lambda: 1.0")},
    "sched.step([1.0])": "a number or a one-element tensor, got list",
    "sched.plot()": "either no loss has come yet|pass target_loss or chance_loss",
    **{f"sched.observe(1.0, weight={given})": f"weight must be finite and not negative, got {given}" for given in (-1, "'a'")},
    "sched.observe()": "'loss'",
    "sched.extend(0)": "total_steps|got 0",
    "sched.extend(None)": "needs a flat decay",
    'sched.extend("more")': "total_steps|'more'",
    "sched.decay_now(0)": "steps|got 0",
    'sched.decay_now(10, decay="fast")': "decay 'fast'|'linear'",
    "sched.decay_now(10, lambda p: 1 - p)": "takes a decay by name",
    "sched.load_state_dict({})": "not the state of AdaptiveWarmup",
    "sched.load_state_dict(opt.state_dict())": "AdaptiveWarmup|param_groups",
    "sched.load_state_dict(None)": "NoneType, not a dictionary",
    "Muon(net)": "Muon.from_model(model",
    'Muon(net.parameters(), lr="1e-3")': "lr must be positive and finite, got '1e-3'",
    "Muon(net.parameters(), 1e-3)": "Muon.from_model(model)",
    "Muon.from_model(net.parameters(), lr=1e-3)": "pass the model",
    **{f"{name}.from_model(net.named_parameters(), lr=1e-3)": NO_MODEL for name in OUR_OPTIMIZERS},
    **{f"Lion.from_model({given}, lr=1e-3)": NO_MODEL for given in ("[*net.parameters()]", "net.state_dict()", "net[0].weight", "Muon")},
    **{f"{name}.from_model(net, weight_decay='1e-3')": "weight_decay must be finite|got '1e-3'" for name in OUR_OPTIMIZERS},
    "Muon.from_model(net, adamw_betas=('0.9', '0.99'))": "adamw_betas must be two numbers",
    "Muon.from_model(net, lr=1e-3, betas=(0.9, 0.95))": "adamw_betas",
    "Muon.from_model(net, lr=1e-3, ns_steps=5)": "no option 'ns_steps'|steps",
    "Muon([], lr=1e-3)": "empty parameter list",
    "Muon([net[0].bias], lr=1e-3)": "Muon orthogonalises matrices|Muon.from_model(model)",
    "Muon.from_model(net, lr=1e-3, heads=net)": "heads takes regular expressions for names, got Sequential( (0)",
    "Lion(net, lr=1e-3)": "Lion.from_model(model",
    'Lion(net.parameters(), lr=1e-3, geometry="sign")': "no option 'geometry'",
    "find_rate(opt, net)": "the order is find_rate(model, optimizer, closure)|got (Muon, Sequential)",
    "find_rate(net, opt, loader)": "closure() runs the next batch|DataLoader",
    **{f"find_rate({given})": "the order is find_rate(model, optimizer, closure)" for given in ("net.parameters(), opt, closure", "net, sched, closure", "net, opt")},
    "find_rate(net, opt, closure)": "the closure ran no backward pass",
    "find_rate(net, opt, closure, steps=3)": "steps|20",
    "find_rate(net, opt, closure, steps=30.5)": "whole number ≥ 20, got 30.5",
    "find_rate(net, opt, closure, highest=math.inf)": "finite",
    "find_rate(net, torch.optim.SGD(net.parameters(), lr=0.0), closure)": "needs an lr above 0",
    "find_rate(net, opt, closure, lowest=1.0, highest=0.1)": "lowest > 0 to highest",
    "find_rate(net, opt, lambda: None)": "return the loss",
    'replay("missing.csv")': "missing.csv",
    "replay(folder)": "trainer_state.json|name a file",
    "replay(([3.0, 2.0],))": "or a tuple (steps, losses)|got tuple",
    "replay(([1, 2], [torch.ones(1, requires_grad=True), 2.0]))": "two lists of numbers",
    "replay([3.0, 2.0])": "give a file, a Log, a DataFrame, or a tuple (steps, losses)|got list",
    "replay(([1, 2], [3.0]))": "two lists of one length",
    "replay(([1, 2], [3.0, 2.0]), warmup_steps=10)": "no warmup_steps|max_warmup",
    "replay(text)": "no column looks like a training loss|two columns, step and loss|Dear reader",
    "WarmupTrainer(net, args(folder), optimizers=(opt, torch.optim.lr_scheduler.StepLR(opt, 3)))": "StepLR|optimizers=(optimizer, None)|AdaptiveWarmup(optimizer, steps)",
    'WarmupTrainer(net, args(folder), warmup={"target_los": 3.0})': "target_los|do you mean target_loss?",
    'WarmupTrainer(net, args(folder), warmup={"total_steps": 9})': "do you mean max_steps or epochs of the trainer?",
    "WarmupTrainer(net, args(folder), optim=opt)": "optim is a name, got a Muon: pass optimizers=(optimizer, None)",
    'WarmupTrainer(net, args(folder), optim="adamw")': "or leave optim out and set args.optim",
    'WarmupTrainer(net, args(folder), optim="muon", optimizers=(opt, None))': "give one of them",
    'WarmupTrainer(net, args(folder), optimizers=(opt, sched), warmup={"decay": "wsd"})': "warmup= and a scheduler were given: pass the options to AdaptiveWarmup",
    'WarmupTrainer(net, args(folder, optim_args="momentum"), optim="muon")': "optim_args='momentum' must read like",
    **{f"WarmupTrainer(net, args(folder), warmup={given})": 'takes options of AdaptiveWarmup, such as {"max_warmup": 0.1}, got ' for given in (10, "'linear'", [("decay", "wsd")])},
    "lightning.WarmupCallback().on_train_batch_start(output, None, object(), 0)": "number of samples in a batch is unknown|give WarmupCallback(weight=...)",
    "WarmupScheduler(Accelerator(cpu=True), opt, 9, log_every=0)": "log_every counts updates and must be at least 1, or None, got 0",
    'total_kappa(net, "sign")': "model.parameters()",
    "geometry.Spectral(radius=0)": "radius|positive",
    **{f"replay(([1, 2, 3], [3.0, 2.0, 1.0]), {given})": words for given, words in {
        "max_warmup=0.0": "max_warmup is a share of the run",
        "calibration='sign'": "needs the κ of a model, which is not here: give Calibration(kappa=...)",
        "recover=True": "without an optimizer, AdaptiveWarmup has no recover: give some of|trained",
    }.items()},
    **{f"AdaptiveWarmup(opt, 100, decay=lambda p: {given})": words for given, words in {
        "p": "1 at p = 0 and within [0, 1]|gives 0 at p = 0",
        "1 - 2 * p": "a decay function maps|gives -0.02 at p = 0.51",
        "1 + 12 * p * (0.5 - p) * (1 - p)": "a decay function maps|gives 1.0|at p = 0.01",
        "torch.cos(p)": "a decay function maps a float to a float; this one raised: cos",
    }.items()},
    **{f"calibrate(**{{'gap0': 8.0, 'lr': 1e-3, 'div': 100.0, 'kappa': 1e3}} | {given})": words for given, words in {
        "{'gap0': 0.0}": "first gap|must be positive",
        "{'lr': -1.0}": "lr must be positive and finite, got -1.0",
        "{'div': 0.5}": "div must be greater than 1",
        "{'kappa': 0.0}": "kappa and sigma_f2 must be positive and finite, got 0.0",
        "{'sigma_f2': math.inf}": "kappa and sigma_f2 must be positive and finite",
        "{'rho': 1.0}": "rho must be above 1",
        "{'candidates': 0}": "candidates must be at least 1, got 0",
        "{'target': 'linear'}": 'target must be "warmup-decay"',
        "{'target': 'linear-exp'}": "unknown decay 'exp'",
        "{'target': 'wsd-linear'}": "unknown warmup 'wsd'",
    }.items()},
    "objective([8.0], 8.0, div=10.0, kappa=1.0)": "between 0 and the first gap 8.0",
    "objective([4.0], 8.0, div=0.5, kappa=1.0)": "div must be greater than 1",
    **{f"Profile(**{{'lr': 1e-3, 'div': 100.0, 'gap0': 8.0, 'peak_gap': 2.0}} | {given})": words for given, words in {
        "{'lr': math.inf}": "lr must be positive and finite, got inf",
        "{'div': 1.0}": "div must be greater than 1 and finite, got 1.0",
        "{'gap0': -2.0}": "first gap|must be positive and finite, got -2.0",
        "{'peak_gap': 0.0}": "peak_gap must lie between 0 and the first gap 8.0, got 0.0",
        "{'peak_gap': 8.0}": "peak_gap must lie between 0 and the first gap 8.0, got 8.0",
        "{'rho': 1.0}": "no peak",
        "{'rho': math.inf}": "above 1 and finite",
        "{'rho': 2000.0}": "beyond floating point",
    }.items()},
    "fit([1, 2], [1, 2, 3])": "one length",
    "fit([1, 2, math.nan], [1, 2, 3])": "finite",
    "fit([1, 2, 2], [1, 2, 3])": "more than 2 different gaps",
    "fit([1, 2, 3], [1, 2, 3], 'cubic')": "unknown model 'cubic'",
    "fit([0, 2, 3, 4], [1, 2, 3, 4], 'power')": "gaps above 0",
    "Probe(net, opt, every=0)": "every must be at least 1",
    **{f"theory.Smoothness({given})": words for given, words in {
        "2.0, -1.0, 0.0, 1.0": "K0", "2.0, 1.0, -1.0, 1.0": "K1", "2.0, 1.0, 0.0, math.inf": "K_rho",
        "2.0, math.nan, 0.0, 1.0": "K0", "0.0, 1.0, 0.0, 1.0": "rho", "2.0, 0.0, 0.0, 0.0": "all zero",
    }.items()},
    "K(np.array([1.0, -1.0]))": "negative",
    "theory.Smoothness(1.0, 1.0, 0.0, 1.0).lambda_max": "rho > 1",
    "K.from_gradient_norm(2.0, 1.0, 1.0)": "0 < rho < 2",
    "K.from_gradient_norm(1.0, 1.0, -1.0)": "L_rho",
    "theory.theorem_1_rate(1.0, K, 0.0)": "D must be positive",
    "theory.theorem_1_rate(-1.0, K, 1.0)": "never negative",
    "theory.decay_only_rate(1.0, K, 1.0, 0.0)": "gap0 must be positive",
    "theory.theorem_2_rate(1.0, K, 0.0)": "weight_decay must be positive",
    "theory.weight_decay_limit(-1.0, 1.0)": "never negative",
    **{f"theory.CompositeProblem(**{{'geometry': geometry.Frobenius(), 'x_star': w.detach().double()}} | {given})": words for given, words in {
        "{'x_star': w}": "float64", "{'geometry': geometry.Spectral('original')}": "numeric radius",
        "{'geometry': 'sign'}": "Frobenius, Sign or Spectral", "{'scale': 0.0}": "scale > 0",
        "{'ripple': 1.0}": "ripple < 1", "{'frequency': -1.0}": "frequency > 0",
        "{'features': torch.eye(4).double()}": "16 columns",
    }.items()},
    **{f"theory.barrier({given})": "ρ = 1 + 2/p" for given in ("0.0", "1e-3", "math.inf", "math.nan")},
    **{f"adaptive_warmup({given})": words for given, words in {
        "100, 60": "the first argument is an optax transformation, got a int",
        "optax.sgd(1.0), 0": "total_steps must be a whole number",
        "optax.sgd(1.0), None": "needs a flat decay",
        "optax.sgd(1.0), 60, decay='cosin'": "unknown decay 'cosin'",
        "optax.sgd(1.0), 60, div=1.0": "div must be greater than 1",
        "optax.sgd(1.0), 60, final_ratio=2.0": "final_ratio must be in",
        "optax.sgd(1.0), 60, target_loss=math.nan": "target_loss must be finite",
        "optax.sgd(1.0), 60, step='lion'": "step is one of adam, lmo, or None, got 'lion'",
        "optax.sgd(1.0), 60, peak_limit=-1.0": "peak_limit must be positive",
    }.items()},
    "theory.descend(BARRIER, 0 * w.detach().double(), lambda gap: 0.1, 0)": "steps must be at least 1",
    "theory.descend(BARRIER, 100 + w.detach().double(), lambda gap: 0.1, 5)": "outside the domain",
    "theory.check_theorem_2(theory.descend(BARRIER, 0 * w.detach().double(), lambda gap: 0.1, 5))": "needs a weight decay in (0",
    "theory.check_theorem_3(theory.descend(BARRIER, 0 * w.detach().double(), lambda gap: 0.1, 5))": "is about a FiniteSum",
    "theory.check_theorem_3()": "all runs must have one length",
    "theory.FiniteSum([])": "share",
    "theory.FiniteSum([theory.CompositeProblem(geometry.Frobenius(), x * w.detach().double()) for x in (1, 2)])": "share",
    "theory.FiniteSum([theory.CompositeProblem(geometry.Sign(), w.detach().double())])": "share",
    "theory.regression_family(torch.eye(3).double(), torch.zeros(3).double(), theory.barrier()).radius(torch.ones(3).double())": "start nearer",
}  # fmt: skip

COMMANDS = {  # beside those of tests/lab/commands/test_wrong_words.py
    "--versoin": "unknown command|replay",
    "replay --html letter.txt letter.txt": "letter.txt cannot be written|must end in .html",
    "train --data.corpus=": "data.corpus must not be empty",
    **{f"replay letter.txt {given}": words for given, words in {
        "--max_warmup half": "argument --max-warmup: invalid share_or_updates value: 'half'", "--geometry muon": "choose from 'sign', 'spectral'",
        "--total_steps 1.5": "--total-steps: invalid int value", "--figure": "expected one argument", "--format json": "unrecognized arguments: --format",
    }.items()},
    "replay missing.csv": "missing.csv: No such file",
    "train --batch-size 0": "batch_size must be at least 1, got 0",
    "train --model.width 0": "width must be at least 1, got 0",
    "train --optimizer adam": "did you mean 'adamw'?",
    "train --learning_rate 1": "did you mean '--optimizer.lr'?",
    "train --epochs 3": "did you mean '--steps'?",
    "train --max_warmup 0.1": "did you mean '--schedule.options'?",
    "train --schedule.max_warmup 0.1": "go into --schedule.options",
    "train --resume-from nowhere": "--resume-from nowhere: no such folder; give a checkpoint",
    "train --seed -1": "seed must be from 0 to", "train --steps 1.5": "steps: expected a whole number, got '1.5'",
    "train --engine.precision fp16": "unknown 'fp16'; known are auto, bfloat16",
    "compare --lr 1": "did you mean '--rates'?", "compare --seed 3": "did you mean '--seeds'?", "compare --optimizers [muon]": "did you mean '--rates'?",
    "compare --seeds 3": "seeds: expected a list of whole numbers, got '3'", "compare --workers 0": "workers must be at least 1",
    "compare --warmups [2000]": "linear needs warmup_steps from 0 to steps − 1 = 599, got 2000", "compare --schedules linear": "schedules: expected a list of names",
    "compare --config broken.yaml": "broken.yaml, line 2: not valid YAML: expected", "compare --task empty.py:Task": "it needs an object with model(), batches(seed)",
    "report letter.txt": "letter.txt holds no results.json: give the folder",
    "figure figure1": "unknown figure 'figure1'; known are", "sweep --cells 3": "cells: expected keys",
    "replay letter.txt": "Dear reader|two columns, step and loss",
    "train --steps 0": "steps must be at least 1",
    "train --task shakespear": "'shakespear'|lm-small",
    "compare --seeds none": "seeds|none",
    "compare --task missing.py": "FILE.py:NAME",
    "report missing": "results.json|autowarm compare",
}  # fmt: skip


def names(folder: Path) -> dict[str, Any]:
    """What a person has who makes these mistakes."""
    from accelerate import Accelerator
    from transformers import Trainer, TrainingArguments

    from autowarm.integrations import accelerate, lightning, transformers

    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    (folder / "letter.txt").write_text(LETTER)
    return {
        **{name: getattr(autowarm, name) for name in autowarm.__all__},
        "autowarm": autowarm, "math": math, "np": np, "torch": torch, "geometry": geometry, "theory": theory, "K": theory.Smoothness(1.7, 2.0, 0.3, 5.0),
        "w": net[0].weight, "nn": nn, "calibrate": calibrate, "objective": objective, "Profile": Profile, "fit": fit, "Probe": Probe, "total_kappa": total_kappa, "net": net, "folder": folder,
        "opt": autowarm.Muon.from_model(net, lr=1e-3),
        "sched": autowarm.AdaptiveWarmup(autowarm.Muon.from_model(net, lr=1e-3), 100),
        "loader": torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2),
        "closure": lambda: net(torch.ones(2, 4)).square().mean(),
        "output": type("ModelOutput", (SimpleNamespace,), {})(loss=1.0, global_step=0),
        "OWN": Profile(1.0, 100.0, 4.9, 2.0, rho=3.0),
        "BARRIER": theory.CompositeProblem(geometry.Frobenius(), 0 * net[0].weight.detach().double() + 0.1, theory.barrier()),
        "adaptive_warmup": jax.adaptive_warmup, "optax": optax,
        "text": folder / "letter.txt",
        "transformers": transformers, "lightning": lightning, "Accelerator": Accelerator,
        "WarmupScheduler": accelerate.WarmupScheduler, "WarmupTrainer": transformers.WarmupTrainer, "Trainer": Trainer,
        "args": lambda folder, **given: TrainingArguments(str(folder), max_steps=9, report_to=[], use_cpu=True, **given),
    }  # fmt: skip


def speaks(message: str, words: str) -> None:
    assert all(word in message for word in words.split("|")), message
    assert len(message.split()) > 2
    assert len(message) < 450
    assert not any(dump in message for dump in (" object at 0x", "<function", "<built-in", "Traceback"))


@pytest.mark.parametrize(("typed", "words"), API.items(), ids=API)
def test_a_mistake_in_code_is_named(typed: str, words: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError, OSError, RuntimeError)) as caught:
        eval(typed, names(tmp_path))
    speaks(str(caught.value), words)


@pytest.mark.parametrize(("typed", "words"), COMMANDS.items(), ids=COMMANDS)
def test_a_mistake_in_a_command_is_named(
    typed: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"letter.txt": LETTER, "broken.yaml": "steps: [1\n", "empty.py": "x = 1\n"}.items():
        Path(name).write_text(text)
    assert main(shlex.split(typed)) in (1, 2)
    speaks(capsys.readouterr().err, words)


def test_an_older_transformers_is_refused_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    monkeypatch.setattr(transformers, "__version__", "4.57.6")
    spec = find_spec("autowarm.integrations.transformers")
    with pytest.raises(ImportError, match=r"needs transformers 5 or later: .*\(transformers 4\.57\.6 is installed\)"):
        spec.loader.exec_module(module_from_spec(spec))  # type: ignore[union-attr, arg-type]
