"""`torch.compile(opt.step)`: one graph for a whole schedule, and what the plain step does.

Graphs are those of any backend; the one here runs them as they are traced.
"""

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup
from tests.optim.makers import EVERY, draw_gradients

UPDATES = 12
NAMES = ["muon", "muon, newton-schulz", "lion", "signsgd", "normsgd", "rows"]


def a_model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 80), nn.LayerNorm(80)]
    return nn.Sequential(*layers, nn.Linear(80, 80))


class Trained:
    """A model trained by the plain step, and one by the compiled step, which takes seconds to compile.

    Two gradients are not finite. The compiled step is called under autocast.
    """

    def __init__(self, name: str, **options: Any) -> None:
        self.exact = options | ({"dtype": torch.float32} if "muon" in name else {})
        self.name, self.graphs, self.rates = name, [], [[], []]
        self.models = a_model(), a_model()
        self.opts = [self.optimizer(model) for model in self.models]
        self.compiled = torch.compile(self.opts[1].step, fullgraph=True, backend=self.backend)
        # Kept, for a step whose scheduler is gone is compiled anew.
        self.schedulers = [AdaptiveWarmup(opt, UPDATES) for opt in self.opts]
        with pytest.warns(UserWarning, match="not finite"):
            self.train(0, self.opts[0].step)
        self.train(1, self.step)

    def optimizer(self, model: nn.Module) -> Any:
        return EVERY[self.name].of_model(model, torch.tensor(0.01), weight_decay=0.1, **self.exact)

    def backend(self, graph: Any, inputs: Any) -> Callable:
        """Runs a graph as it was traced."""
        self.graphs.append(graph.graph)
        return graph.forward

    def step(self) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            self.compiled()

    def train(self, which: int, step: Callable[[], None]) -> None:
        model, opt = self.models[which], self.opts[which]
        for update in range(UPDATES):
            draw_gradients(model, update)
            if update in (1, 2):
                model[2].weight.grad[0, 0] = math.nan
            self.rates[which].append(float(opt.param_groups[0]["lr"]))
            step()
            self.schedulers[which].step(1.0 / (update + 1))


@pytest.fixture(scope="module", params=NAMES)
def trained(request: pytest.FixtureRequest) -> Iterator[Trained]:
    torch._dynamo.reset()
    yield Trained(request.param)
    torch._dynamo.reset()


@pytest.mark.long
def test_one_graph_serves_a_whole_schedule_and_steps_as_the_plain_one(trained: Trained) -> None:
    plain, compiled = trained.models
    assert trained.rates[0] == trained.rates[1]
    assert len(set(trained.rates[0])) > 6
    torch.testing.assert_close([*compiled.parameters()], [*plain.parameters()], atol=1e-4, rtol=1e-4)
    assert [opt.skipped_updates for opt in trained.opts] == [2, 2]
    assert all(p.isfinite().all() for p in compiled.parameters())
    other = copy.deepcopy(compiled)  # and its state goes on in a plain one
    loaded = trained.optimizer(other)
    loaded.load_state_dict(copy.deepcopy(trained.opts[1].state_dict()))
    for model, step in ((compiled, trained.step), (other, loaded.step)):
        draw_gradients(model, UPDATES)
        step()
    assert len(trained.graphs) == 1
    torch.testing.assert_close([*compiled.parameters()], [*other.parameters()], atol=1e-5, rtol=1e-5)


INPUTS = ("placeholder", "get_attr")
# What Inductor computes before it goes on. All else it puts off until a kernel needs it.
REALIZED = ("norm", "sum", "mm", "max", "all", "any", "stack")


def late_readers(graph: torch.fx.Graph) -> list[str]:
    """What reads an input, is used after a foreach operator has overwritten it, and so would see the new values.

    So compiles Inductor for GPUs (seen in PyTorch 2.11 and 2.15). Plain operators that overwrite are safe.
    """
    reads: dict[torch.fx.Node, set[torch.fx.Node]] = {}
    place = {node: i for i, node in enumerate(graph.nodes)}
    readers = []
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
        readers += [
            f"{reader.format_node()} before {node.format_node()}"
            for reader in list(reads)[: place[node]]
            if reader.op not in INPUTS and reads[reader] & written
            if any(place[user] > place[node] for user in reader.users)
        ]
    return readers


@pytest.mark.long
def test_a_foreach_operator_overwrites_nothing_that_is_still_read(trained: Trained) -> None:
    """A compiled Lion on a GPU took the sign of its new momentum."""
    graph = trained.graphs[0]
    assert any("_foreach" in str(node.target) or "lerp" in str(node.target) for node in graph.nodes)
    assert late_readers(graph) == []
