"""`torch.compile(opt.step)`: one graph for a whole schedule, and what the plain step does.

Graphs are those of any backend; the one here runs them as they are traced.
"""

import copy
import math

import pytest
import torch
from torch import nn

from autowarm import LMO, AdaptiveWarmup, Lion, Muon, NormSGD, SignSGD

MAKERS = {
    "muon": lambda model, **o: Muon.from_model(model, dtype=torch.float32, **o),
    "muon, newton-schulz": lambda model, **o: Muon.from_model(model, method="newton-schulz", dtype=torch.float32, **o),
    "lion": lambda model, **o: Lion.from_model(model, **o),
    "signsgd": lambda model, **o: SignSGD.from_model(model, **o),
    "normsgd": lambda model, **o: NormSGD.from_model(model, **o),
    "rows": lambda model, **o: LMO.from_model(model, geometry="rows", **o),
}
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
some_optimizers = pytest.mark.parametrize(
    "make",
    [pytest.param(make, marks=() if name in ("muon", "lion") else pytest.mark.long) for name, make in MAKERS.items()],
    ids=MAKERS,
)


def a_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 48),
        nn.Tanh(),
        nn.Linear(48, 16),
        nn.Tanh(),
        nn.Linear(16, 80),
        nn.LayerNorm(80),
        nn.Linear(80, 80),
    )


class Graphs:
    """A backend that counts what it is given."""

    def __init__(self):
        self.count = 0

    def __call__(self, graph, inputs):
        self.count += 1
        return graph.forward


@pytest.fixture
def graphs():
    torch._dynamo.reset()
    yield Graphs()
    torch._dynamo.reset()


def train(model, opt, step, updates, spoil=()):
    sched = AdaptiveWarmup(opt, total_steps=updates)
    rates = []
    for update in range(updates):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(update))
        loss = (model(x).mean(dim=1) - x.sum(dim=1)).square().mean()
        loss.backward()
        if update in spoil:
            model[2].weight.grad[0, 0] = math.nan
        rates.append(float(opt.param_groups[0]["lr"]))
        step()
        sched.step(loss)
        opt.zero_grad()
    return rates


@every_optimizer
def test_one_graph_serves_a_whole_schedule_and_steps_as_the_plain_one(make, graphs):
    plain, compiled = a_model(), a_model()
    opts = [make(model, lr=torch.tensor(0.01), weight_decay=0.1) for model in (plain, compiled)]
    rates = train(plain, opts[0], opts[0].step, 12)
    assert train(compiled, opts[1], torch.compile(opts[1].step, fullgraph=True, backend=graphs), 12) == rates
    assert len(set(rates)) > 6
    assert graphs.count == 1
    for p, q in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-4, rtol=1e-4)


@some_optimizers
def test_a_compiled_step_leaves_out_what_is_not_finite_and_counts_it(make, graphs):
    plain, compiled = a_model(), a_model()
    opts = [make(model, lr=torch.tensor(0.01)) for model in (plain, compiled)]
    with pytest.warns(UserWarning, match="not finite"):
        train(plain, opts[0], opts[0].step, 4, spoil=(1, 2))
    train(compiled, opts[1], torch.compile(opts[1].step, fullgraph=True, backend=graphs), 4, spoil=(1, 2))
    assert opts[0].skipped_updates == opts[1].skipped_updates == 2
    for p, q in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-4, rtol=1e-4)


def test_a_state_of_a_compiled_run_goes_on_in_a_plain_one(graphs):
    model = a_model()
    opt = Muon.from_model(model, lr=torch.tensor(0.01), dtype=torch.float32)
    step = torch.compile(opt.step, fullgraph=True, backend=graphs)
    train(model, opt, step, 3)
    other = copy.deepcopy(model)
    loaded = Muon.from_model(other, lr=torch.tensor(0.01), dtype=torch.float32)
    loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    for one in (model, other):
        one(torch.ones(2, 16)).sum().backward()
    step()
    loaded.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-5, rtol=1e-5)


INPUTS = ("placeholder", "get_attr")
# What Inductor computes before it goes on. All else it puts off until a kernel needs it.
REALIZED = ("norm", "sum", "mm", "max", "all", "any", "stack")


def late_readers(graph: torch.fx.Graph) -> list[str]:
    """What reads an input, is used after a foreach operator has overwritten it, and so would see the new values.

    So compiles Inductor for GPUs (seen in PyTorch 2.11 and 2.15). Plain operators that overwrite are safe.
    """
    reads: dict[torch.fx.Node, set[torch.fx.Node]] = {}
    place = {node: i for i, node in enumerate(graph.nodes)}
    found = []
    for node in graph.nodes:
        name = str(getattr(node.target, "__name__", node.target))
        reads[node] = set().union(*(reads[x] for x in node.all_input_nodes))
        if node.op in INPUTS:
            reads[node] = {node}
        elif any(word in name for word in REALIZED):
            reads[node] = set()
        if not (name.startswith("_foreach_") and name.endswith("_")):
            continue
        written = {x for x in node.args[0] if isinstance(x, torch.fx.Node) and x.op in INPUTS}
        found += [
            f"{reader.format_node()} before {node.format_node()}"
            for reader in list(reads)[: place[node]]
            if reader.op not in INPUTS and reads[reader] & written
            if any(place[user] > place[node] for user in reader.users)
        ]
    return found


@pytest.mark.parametrize("make", [*MAKERS.values(), lambda model, **o: Muon.from_model(model, adamw_eps_hat=True, **o)])
def test_a_foreach_operator_overwrites_nothing_that_is_still_read(make) -> None:
    """A compiled Lion on a GPU took the sign of its new momentum."""
    model = a_model()
    opt = make(model, lr=torch.tensor(0.01))
    traced = []
    step = torch.compile(opt.step, fullgraph=True, backend=lambda module, _: traced.append(module.graph) or module)
    torch._dynamo.reset()
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    step()
    assert any("_foreach" in str(node.target) or "lerp" in str(node.target) for node in traced[0].nodes)
    assert late_readers(traced[0]) == []
