"""The step that all our optimizers share: a geometry and a momentum turn it into Muon, Lion, signSGD or normSGD."""

import math
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, ClassVar, Self, TypedDict, Unpack, overload

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from .._torch.devices import check_member, is_capturing
from .._torch.modes import without_autocast
from ..geometry import Geometry, GeometryName, resolve
from .checks import (
    called,
    check_capture,
    check_gradient,
    check_name,
    check_options,
    check_parameters,
    check_whole,
    name_like_others,
    plain_numbers,
)
from .model.partition import by_reading, partition
from .ranks.agreement import Agreement
from .ranks.dtensors import PLAIN, is_dtensor
from .ranks.sharing import Shared
from .states import Saved
from .step.nonfinite import Flag, SkippedUpdates, measured
from .step.outliers import Outliers
from .step.plan import Plans
from .step.update import Oracle, Rule, Update
from .unused import UPDATES, Unused


class Common(TypedDict, total=False):
    """Options of every optimizer, see `LMO`."""

    weight_decay: float
    maximize: bool
    capturable: bool
    max_nonfinite: int | None
    skip_outliers: float | None
    warn_unused: bool


_COMMON: dict[str, Any] = {
    "weight_decay": 0.0, "maximize": False, "capturable": False, "max_nonfinite": 20, "skip_outliers": None,
    "warn_unused": True
}  # fmt: skip
_SWITCHES = ("maximize", "capturable", "warn_unused")


class Watched(Optimizer):
    """An optimizer that looks for tensors which never have a gradient."""

    _unused: Unused

    def _step(self) -> bool:
        """Make an update from the present gradients; return whether there were any."""
        raise NotImplementedError

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make an update.

        Our optimizers update every tensor that has a gradient, if all gradients are finite, and none otherwise. A
        gradient of another dtype is converted to its tensor's. The caller's autocast reaches the closure alone.

        Args:
            closure: recomputes the loss and its gradients, and returns the loss. It is called once.

        Raises:
            ValueError: a gradient is sparse, its numbers are complex or whole, or it is not on the mesh of its tensor,
                FSDP1 has cut a tensor whose step needs the whole, a tensor was resized since its last step, or a
                group's rate is out of range; nothing is updated. Other options are checked when a group is added.
            RuntimeError: ranks that share tensors have different tensors or gradients; no rank updates anything, and
                on an accelerator the error may come in a later step. Also if gradients were not finite in
                ``max_nonfinite`` updates in a row, a CUDA graph that could not be replayed is capturing the step, or
                it is made in `torch.inference_mode`.
        """
        # The compiler leaves this mode by itself, and cannot trace the question.
        if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
            raise RuntimeError(
                f"{type(self).__name__}.step was called in torch.inference_mode, where state would be made that no "
                "later step could change: step outside of it; torch.no_grad does no harm"
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        any_gradient = self._step()
        if self._unused.left or not any_gradient:
            whose = type(self).__name__, self.param_groups
            self._unused.look(*whose, any_gradient=any_gradient, closure=closure is not None)
        return loss


class LMO(Watched, Saved):
    r"""Step by a linear minimisation oracle over a norm ball, with momentum and decoupled weight decay.

    .. math:: m \leftarrow \beta m + (1-\beta) g, \qquad x \leftarrow (1-\lambda\eta)\,x + \eta\,\mathrm{LMO}(m)

    These are the paper's eq. 2 (update_rule_1) and eq. 4 (update_rule_2) with a momentum as the gradient estimate g^t.
    Each parameter group has its own geometry, so a hybrid optimizer is a list of groups. A step never changes
    ``p.grad``.

    Args:
        params: tensors, named tensors or groups; a group can override any option below but ``process_group``,
            ``max_nonfinite`` and ``skip_outliers``.
        lr: peak rate η > 0, a float or a one-element tensor. A group with rate 0 is not updated.
        geometry: norm in which each tensor moves: "spectral", "sign", "frobenius", "rows", "columns" or an
            `autowarm.geometry.Geometry`.
        momentum: β in [0, 1).
        nesterov: use β·m + (1−β)·g as the momentum that the step follows, instead of m.
        weight_decay: λ ≥ 0, by default 0.
        maximize: climb instead: step along +m, as PyTorch's optimizers do. Decay still shrinks the weights.
        capturable: set this to capture the step in a CUDA graph. ``lr`` must then be a tensor on the parameters'
            device, because each replay reads it there; a number would be frozen into the graph. Make one step before
            you capture.
        process_group: ranks that hold copies of the tensors and equal gradients (DDP). They then split the matrix work:
            each rank orthogonalises some of the matrices and all ranks gather the results. The default does not split,
            because ranks that train different models would wait for each other forever. DTensors (FSDP2, tensor
            parallelism) need no argument; their gradients are redistributed to the placements of the tensors. Each
            step starts with a small message: ranks skip the same updates, and if one has no gradient where another
            has, every rank raises. Every rank must make as many steps as the others: with uneven inputs, use
            ``drop_last=True`` or equal shards. Pickles and copies of the optimizer do not contain the group.
        max_nonfinite: how many updates in a row may see a non-finite gradient before an error is raised, by default 20;
            None for no limit. As under a `GradScaler`, such an update is skipped: no tensor and no momentum changes. A
            gradient whose square is not finite (a norm from 1.8e19 on in single precision and bfloat16) counts as one.
        skip_outliers: skip an update, too, if the norm of all gradients is this many standard deviations above the mean
            of the last 128 and above 16 times their largest, which is at least 31 of them; 6.0 is usual. At most one in
            ten is skipped. A state has the norms.
        warn_unused: warn once of tensors that ask for a gradient and have none in the first three updates, as they do
            if the model was copied, sharded or given other layers after the optimizer was built. Experts of a mixture
            are not meant, nor groups with False.

    Raises:
        TypeError: an option is unknown; the message lists those that there are.
        ValueError: an option is out of range, a geometry or a group's option is unknown, or a tensor is sparse or
            complex.
        NotImplementedError: a DTensor is sharded with several strides, and its step needs the whole tensor.

    Example:
        >>> import torch
        >>> from autowarm import LMO
        >>> layer = torch.nn.Linear(8, 4)
        >>> opt = LMO([{"params": [layer.weight], "geometry": "spectral"},
        ...            {"params": [layer.bias], "geometry": "sign"}], lr=0.1)
        >>> layer(torch.ones(2, 8)).square().mean().backward()
        >>> opt.step()
    """

    _process_group: dist.ProcessGroup | None = None  # copies and pickles have none
    _rules: ClassVar[dict[str, Rule]] = {"": Oracle()}
    _geometry: ClassVar[GeometryName] = "spectral"
    _ends: ClassVar[dict[str, float]] = {"lr": math.inf, "weight_decay": math.inf, "momentum": 1.0}

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        geometry: GeometryName | Geometry = "spectral",
        momentum: float = 0.95,
        nesterov: bool = False,
        process_group: dist.ProcessGroup | None = None,
        **common: Unpack[Common],
    ) -> None:
        self._build(params, lr, common, process_group, geometry=geometry, momentum=momentum, nesterov=nesterov)

    def _build(
        self, params: ParamsT, lr: Any, common: Common, process_group: dist.ProcessGroup | None = None, **options: Any
    ) -> None:
        """Make the optimizer from the options that all have, and those that its class adds or sets."""
        known = {*signature(type(self)).parameters, *_COMMON} - {"params", "common"}
        for name in common.keys() - _COMMON.keys():
            raise TypeError(f"{type(self).__name__} has no option {name!r}: it takes {', '.join(sorted(known))}")
        if isinstance(params, nn.Module):
            raise TypeError(
                f"{type(self).__name__} takes parameters: for a model, {type(self).__name__}.from_model(model, lr)"
            )
        check_member(process_group)
        defaults: dict[str, Any] = {"lr": lr, **options, **_COMMON, **common}
        self._process_group = process_group
        self._prepare()
        self._skipped = SkippedUpdates(defaults.pop("max_nonfinite"))  # of the optimizer, and not of its groups
        self._outliers = Outliers(defaults.pop("skip_outliers"))
        check_options(defaults, self._ends, self._choices, of_group=False)
        super().__init__(params, plain_numbers(defaults))

    @classmethod
    def from_model(
        cls, model: nn.Module, lr: float | Tensor = 1e-3, *, weight_decay: float = 0.1, **options: Any
    ) -> Self:
        """Build the optimizer for a whole model, with weight decay on the layers' weights only.

        Weights of linear and convolution layers decay by λ; embeddings (and heads tied to them), biases, norms and what
        the model exempts (``no_weight_decay()``) do not. `autowarm.optim.partition` explains how it tells them apart.
        In spectral and Frobenius geometry, each expert of a stack is a matrix of its own, and in spectral geometry each
        group of a convolution.

        Raises:
            ValueError: no tensor of the model requires a gradient.
        """
        # Weights decay and keep how they are read; all else does not decay.
        parts = partition(model, heads=[])  # one rule updates output layers and others
        weights = parts.matrices + parts.stacks + parts.depthwise
        geometry = resolve(options.get("geometry", cls._geometry))
        groups: list[dict[str, Any]] = [
            {"params": named, "role": "weights", "weight_decay": weight_decay, "geometry": read}
            for read, named in by_reading(parts, weights, geometry).items()
        ]
        others = {"params": parts.embeddings + parts.vectors, "role": "embeddings and vectors", "weight_decay": 0.0}
        groups.append({**others, "geometry": geometry.reading()})
        return cls(parts.by_decay(groups), lr, **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, after checking its options; a geometry can be given by name."""
        if not isinstance(param_group, dict):
            raise TypeError(f"a parameter group is a dict with params and options, got a {type(param_group).__name__}")
        # Before PyTorch takes the group: its options
        self._settle(param_group)
        name_like_others(param_group, self.param_groups)
        super().add_param_group(param_group)
        self._unused.left = UPDATES  # the new tensors are looked at, too
        try:
            self._check_tensors(self.param_groups[-1])  # after PyTorch has made lists and names of them
        except (ValueError, NotImplementedError):
            self.param_groups.pop()
            raise

    def _check_tensors(self, group: dict[str, Any]) -> None:
        """Raise ValueError or NotImplementedError if the group's options cannot update its tensors."""
        check_parameters(type(self).__name__, group)
        for p in group["params"]:
            group["geometry"].check_shape(p.shape)
            if is_dtensor(p):
                Shared(self._rule(group), None).shares(group["geometry"], [p])  # raises if it is sharded over too many

    @without_autocast
    @torch.no_grad()
    def _step(self) -> bool:
        ranks = self._agreement if self._is_shared() else None
        # What can be refused is refused, on all ranks, before any tensor moves.
        if ranks is None:
            updates = self._collect()
            finite, squares = measured([g for update in updates for g in update.gs])
        else:
            updates, finite, squares = ranks.collect(self)
        # Whether all gradients are finite, and the update is made: numbers on the host, or flags on a device
        judged = finite if self._outliers.limit is None else self._outliers.judge(squares, finite, ranks)
        flag = Flag(finite, applied=judged)
        # Momentum → direction → oracle → move, by the rule of each group; a flag on a device masks all of it
        rules: Mapping[str, Any] = self._rules if ranks is None else self._shared
        for update in updates if flag.applied is not False else ():
            update.finite = flag.applied if isinstance(flag.applied, Tensor) else None
            rules[update.group.get("algorithm", "")].update_(update, self._plans)
        # Skipped updates: warned of once, and an error after some in a row
        if len(updates) > 0:  # which PyTorch 2.11 can trace, unlike bool
            self._skipped.count(type(self).__name__, flag)
        return len(updates) > 0

    def _collect(self) -> list[Update]:
        """One pass over the groups: the tensors that have a gradient, and their state.

        Whatever can be refused is refused here, before any tensor moves.
        """
        updates = []  # one for each group, as each has its own rule and options
        for group in self.param_groups:
            xs: list[Tensor] = []
            gs: list[Tensor] = []
            state: list[list[Tensor]] = []
            rule = self._rules.get(group.get("algorithm", ""))
            for _ in rule.entries if rule else ():  # `_init_group` refuses an unknown one
                state.append([])  # noqa: PERF401  (a comprehension is a call of its own)
            self._init_group(group, xs, gs, *state)
            for i, x in enumerate(xs):
                if gs[i].dtype != x.dtype:  # as mixed precision may leave it
                    gs[i] = gs[i].to(x.dtype)
            if xs:
                updates.append(Update(group, xs, gs, state))
        return updates

    def _init_group(self, group: dict[str, Any], xs: list[Tensor], gs: list[Tensor], *state: list[Tensor]) -> None:
        """Collect the group's tensors that have a gradient, and their state, in these lists, creating it if needed.

        The name is PyTorch's: `torch.compile` runs this method without tracing it, and takes what it puts into lists.
        It raises the errors of `step`.
        """
        for p in group["params"]:
            g = p.grad
            if g is not None:
                plain = type(p) in PLAIN and type(g) in PLAIN
                if not plain or g.layout is not torch.strided or not g.is_floating_point():
                    check_gradient(type(self).__name__, p, g)
                xs.append(p)
                gs.append(g)
        lr = group["lr"]  # which schedules set, and anybody else
        if not (isinstance(lr, Tensor) or (type(lr) is float and 0 <= lr < math.inf)):
            place = next(i for i, one in enumerate(self.param_groups) if one is group)
            self._check_group(group, f"{type(self).__name__}: {called(place, self.param_groups)}: ")
            group["lr"] = float(lr)
        geometry = group["geometry"]
        # Once for each geometry: whether it can step these tensors
        if id(geometry) not in self._plans.geometries:  # as it is not in the first step
            check_whole(type(self).__name__, geometry, [p for one in self.param_groups for p in one["params"]])
            self._check_tensors(group)
            self._plans.geometries[id(geometry)] = geometry
        if not xs:
            return
        rule = self._rules[group.get("algorithm", "")]
        if xs[0].device.type != "cpu" and is_capturing(xs[0].device):
            lacks_state = any(name not in self.state[p] for p in xs for name in self._keeps(group))
            check_capture(type(self).__name__, group, ready=self._skipped.counts is not None and not lacks_state)
        if self._skipped.counts is None:
            self._skipped.prepare(xs[0].device)
            self._outliers.prepare(xs[0].device)
        rule.state_of(group, xs, self.state, state)  # makes the state that is missing

    def _settle(self, group: dict[str, Any]) -> None:
        """Bring a new group's options to their usual form; ValueError if one is out of range or nearly one of ours."""
        for name in group.keys() - self.defaults.keys():
            check_name(type(self).__name__, name, self.defaults)
        group.update(plain_numbers(group))
        self._check_group({**self.defaults, **group})
        group["geometry"] = resolve(group.get("geometry", self.defaults["geometry"]))

    def _is_shared(self) -> bool:
        """Whether other ranks hold copies or shards of the tensors."""
        if self._process_group is not None:
            return True
        for group in self.param_groups:
            for p in group["params"]:
                if type(p) not in PLAIN and is_dtensor(p):
                    return True
        return False

    def _options(self) -> list[str]:
        """What ranks must have alike of each tensor, beside its shape."""
        # The rate is left out: each rank's schedule sets it at each step.
        described: list[str] = []
        for group in self.param_groups:
            options = [group[name] for name in self.defaults if name != "lr"]
            described += [repr((options, self._outliers.limit, self._skipped.most))] * len(group["params"])
        return described

    @without_autocast
    @torch.no_grad()
    def check_step(self) -> None:
        """Raise the errors of `step` that the present gradients would cause, without a step.

        Ranks that share tensors must call this together: if one refuses its gradients, all raise.
        """
        if self._is_shared():
            self._agreement.collect(self)
        else:
            self._collect()

    @property
    def skipped_updates(self) -> int:
        """How many updates were skipped because of a gradient; reading it waits for the device."""
        return self._skipped.so_far()[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_skipped": self._skipped, "_outliers": self._outliers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # PyTorch's, which also loads a state by it
        if not hasattr(self, "_agreement"):  # a copy, and not the optimizer itself, which loads a state here, too
            self._prepare()
            self.__dict__.setdefault("_outliers", Outliers(None))
        self._agreement.checked = False  # a loaded group may differ from the other ranks'
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)  # a state saved before this option existed

    def _prepare(self) -> None:
        """Make what no copy or pickle contains."""
        self._unused = Unused()
        self._agreement, self._plans = Agreement(self._process_group), Plans()
        self._shared = {name: Shared(rule, self._process_group) for name, rule in self._rules.items()}

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}("]
        for group in self.param_groups:
            # A line for each group: its role, its size, and the options that have an effect
            size = sum(p.numel() for p in group["params"])
            names = dict.fromkeys([*(self._rule(group).options or self.defaults), *_SWITCHES])
            shown = [name for name in names if name not in _SWITCHES or group[name] != _COMMON[name]]
            described = ", ".join(f"{name}={group[name]}" for name in shown)
            lines.append(f"  {group.get('role', 'tensors')} ({len(group['params'])}; {size:,} parameters): {described}")
        return "\n".join([*lines, ")"])
