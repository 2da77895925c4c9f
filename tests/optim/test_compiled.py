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
    "muon, eps hat": lambda model, **o: Muon.from_model(model, adamw_eps_hat=True, dtype=torch.float32, **o),
    "lion": lambda model, **o: Lion.from_model(model, **o),
    "signsgd": lambda model, **o: SignSGD.from_model(model, **o),
    "normsgd": lambda model, **o: NormSGD.from_model(model, **o),
    "rows": lambda model, **o: LMO.from_model(model, geometry="rows", **o),
}


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


def train(model, sched, step):
    """Train, with two gradients that are not finite; returns the rates."""
    opt, rates = sched.optimizer, []
    for update in range(sched.total_steps):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(update))
        loss = (model(x).mean(dim=1) - x.sum(dim=1)).square().mean()
        loss.backward()
        if update in (1, 2):
            model[2].weight.grad[0, 0] = math.nan
        rates.append(float(opt.param_groups[0]["lr"]))
        step()
        sched.step(loss)
        opt.zero_grad()
    return rates


class Trained:
    """A model trained by the plain step, and one by the compiled step, which takes seconds to compile."""

    def __init__(self, make):
        self.make, self.graphs = make, []
        self.plain, self.compiled = a_model(), a_model()
        opts = [self.optimizer(model) for model in (self.plain, self.compiled)]
        self.step = torch.compile(opts[1].step, fullgraph=True, backend=self.backend)
        # Kept, for a step whose scheduler is gone is compiled anew.
        self.schedulers = [AdaptiveWarmup(opt, 12) for opt in opts]
        with pytest.warns(UserWarning, match="not finite"):
            self.plain_rates = train(self.plain, self.schedulers[0], opts[0].step)
        self.compiled_rates = train(self.compiled, self.schedulers[1], self.step)
        self.skipped = [opt.skipped_updates for opt in opts]
        self.weights = [[p.detach().clone() for p in model.parameters()] for model in (self.plain, self.compiled)]
        self.opt = opts[1]

    def optimizer(self, model):
        return self.make(model, lr=torch.tensor(0.01), weight_decay=0.1)

    def backend(self, graph, inputs):
        """Runs a graph as it was traced."""
        self.graphs.append(graph.graph)
        return graph.forward


@pytest.fixture(scope="module", params=MAKERS.values(), ids=MAKERS)
def trained(request):
    torch._dynamo.reset()
    yield Trained(request.param)
    torch._dynamo.reset()


@pytest.mark.long
def test_one_graph_serves_a_whole_schedule_and_steps_as_the_plain_one(trained):
    assert trained.compiled_rates == trained.plain_rates
    assert len(set(trained.plain_rates)) > 6
    assert len(trained.graphs) == 1
    plain, compiled = trained.weights
    torch.testing.assert_close(compiled, plain, atol=1e-4, rtol=1e-4)


@pytest.mark.long
def test_a_compiled_step_leaves_out_what_is_not_finite_and_counts_it(trained):
    assert trained.skipped == [2, 2]
    assert all(p.isfinite().all() for p in trained.weights[1])


@pytest.mark.long
def test_a_state_of_a_compiled_run_goes_on_in_a_plain_one(trained):
    model, opt = trained.compiled, trained.opt
    other = copy.deepcopy(model)
    loaded = trained.optimizer(other)
    loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    for one in (model, other):
        one(torch.ones(2, 16)).sum().backward()
    trained.step()
    loaded.step()
    assert len(trained.graphs) == 1  # it was the compiled step's
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


@pytest.mark.long
def test_a_foreach_operator_overwrites_nothing_that_is_still_read(trained) -> None:
    """A compiled Lion on a GPU took the sign of its new momentum."""
    graph = trained.graphs[0]
    assert any("_foreach" in str(node.target) or "lerp" in str(node.target) for node in graph.nodes)
    assert late_readers(graph) == []
