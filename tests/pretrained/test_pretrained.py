"""Whether weights were trained before: new ones of every kind, trained ones of every optimizer, adapters, ranks."""

import copy
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from autowarm import Lion, Muon, NormSGD, SignSGD
from autowarm.pretrained import Verdict, detect
from tests import families
from tests.pretrained.pretrained_ranks import adapters, taught
from tests.programs import results

SHAPES = [(64, 64), (192, 64), (64, 256), (16, 512), (1500, 40), (32, 16, 3, 3), (128, 1, 3, 3), (4, 48, 96)]


def of_variance_by_rows(w: Tensor) -> Tensor:
    return w.normal_().mul_(torch.tensor([1.0, 2.0, 4.0]).repeat_interleave(-(-len(w) // 3))[: len(w), None])


def through_matrix(fill: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """For what takes matrices only."""
    return lambda w: fill(w.flatten(1)).view(w.shape)


NEW: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda w: nn.init.normal_(w, std=0.02),
    "truncated": nn.init.trunc_normal_,
    "uniform": lambda w: nn.init.uniform_(w, -0.05, 0.05),
    "uniform, positive": nn.init.uniform_,
    "xavier": nn.init.xavier_uniform_,
    "kaiming": nn.init.kaiming_normal_,
    "scaled by 1/width": lambda w: nn.init.normal_(w, std=1 / w[0].numel()),
    "1e-22": lambda w: nn.init.normal_(w, std=1e-22),
    "orthogonal": nn.init.orthogonal_,
    "sparse": through_matrix(lambda w: nn.init.sparse_(w, 0.9)),
    "identity": through_matrix(nn.init.eye_),
    "heavy tails": lambda w: w.normal_().pow_(3),
    "first row zero": lambda w: torch.cat([torch.zeros_like(w[:1]), torch.randn_like(w[1:])]),
    "scales by blocks of rows": through_matrix(of_variance_by_rows),
    "scales by blocks of columns": through_matrix(lambda w: of_variance_by_rows(w.T.contiguous()).T),
    "half of the rows tiny": lambda w: w.normal_().mul_(
        torch.tensor([1.0, 1e-6]).repeat(len(w) // 2).view(-1, *[1] * (w.ndim - 1))
    ),
    "bfloat16": lambda w: w.normal_(std=0.02).bfloat16(),
    "float16": lambda w: w.normal_(std=0.02).half(),
    "float8": lambda w: w.normal_().to(torch.float8_e4m3fn),
    "float64": lambda w: w.double().normal_(),
    "zeros": nn.init.zeros_,
    "ones": nn.init.ones_,
    "signs": lambda w: w.normal_().sign_(),
}


@pytest.mark.parametrize("name", NEW)
def test_new_matrices_are_new(name):
    """Alone, in any shape, and all together, which is the stricter test."""
    torch.manual_seed(0)
    matrices = [NEW[name](torch.empty(shape)) for shape in SHAPES for _ in range(5)]
    verdicts = [detect([w]) for w in matrices]
    assert not any(verdict.trained for verdict in verdicts)
    together = detect(matrices)
    assert not together.trained
    assert together.score < 1


OPTIMIZERS = {
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=2e-3),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "muon": lambda model: Muon.from_model(model, lr=0.02, weight_decay=0.0),
    "lion": lambda model: Lion(model.parameters(), lr=5e-4),
    "normsgd": lambda model: NormSGD(model.parameters(), lr=0.03),
    "signsgd": lambda model: SignSGD(model.parameters(), lr=5e-4),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_trained_matrices_are_trained(name):
    model, before, after = taught(OPTIMIZERS[name], updates=200)
    assert not before.trained
    assert after.trained
    assert after.evidence == "matrices"
    assert detect(model.bfloat16()).trained


def test_neither_frozen_weights_nor_a_new_head_make_a_trained_body_new():
    model, head = taught(OPTIMIZERS["adamw"], updates=200)[0].requires_grad_(False), nn.Linear(64, 64)
    assert detect(torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)).trained
    assert not detect(torch.optim.SGD(head.parameters(), lr=0.1)).trained
    model[-1].reset_parameters()
    assert detect(model).trained


def test_one_update_does_not_make_a_new_model_a_trained_one():
    assert not taught(OPTIMIZERS["adamw"], updates=1)[2].trained


def structured() -> list[Tensor]:
    """Matrices that look trained."""
    torch.manual_seed(0)
    return [torch.randn(64, 8) @ torch.randn(8, 64) for _ in range(6)]


def test_untouched_gains_outvote_the_matrices():
    ones = [torch.ones(64) for _ in range(3)]
    learnt = [1 + 0.05 * torch.randn(64) for _ in range(3)]
    verdict = detect(structured())
    assert verdict.trained
    for scale in (1e-22, 1e22):
        assert detect([scale * w for w in structured()]).score == pytest.approx(verdict.score)
    assert detect([*structured(), *ones]) == detect([*structured(), *ones])._replace(trained=False, evidence="gains")
    assert detect([*structured(), *learnt, *ones[:2]]).evidence == "matrices"
    assert detect([*structured(), 1 + 1e-3 * torch.randn(64).sign()]).evidence == "gains"  # after one update
    for vector in (torch.zeros(64), torch.linspace(-1, 1, 64), torch.ones(4), torch.ones(64).int()):  # no gains
        assert detect([*structured(), vector]).evidence == "matrices"


@pytest.mark.parametrize("rank", [1, 4, 15])
def test_adapters_belong_to_a_trained_model(rank):
    verdict = detect(adapters(rank))
    # With one row or column nothing is a matrix, but adapters of rank 1 are rare.
    assert verdict[:2] == ((True, "adapters") if rank > 1 else (False, "none"))
    assert detect([*adapters(rank), torch.randn(10, 64)]).trained == (rank > 1)
    assert detect([torch.randn(4, 32, 3, 3), torch.zeros(64, 4, 1, 1)]).evidence == "adapters"  # of convolutions


@pytest.mark.parametrize(
    ("random", "zero"),  # shapes of a block's random matrices, and of its zero ones
    [
        pytest.param([(256, 64)], [(64, 256)], id="a zero layer after a wide one"),
        pytest.param([(64, 64)] * 3, [(64, 64)], id="zero projections"),
        pytest.param([(64, 256), (256, 64)], [(384, 64)], id="zero modulation"),
        pytest.param([(16, 256), (256, 16)], [], id="two new factors"),
        pytest.param([(256, 4)], [(4, 256)], id="the first factor is zero"),
    ],
)
def test_other_zero_matrices_are_no_adapters(random, zero):
    torch.manual_seed(0)
    blocks = [w for _ in range(6) for w in (*map(torch.randn, random), *map(torch.zeros, zero))]
    assert not detect(blocks).trained


@pytest.mark.parametrize(
    "tensors",
    [
        [],
        [torch.ones(3)],
        [torch.zeros(9, 9)],
        [torch.ones(9, 9).int()],
        [torch.randn(7, 99)],
        [torch.randn(9, 9, device="meta")],
        [torch.randn(9, 9, dtype=torch.complex64)],
        [torch.randn(9, 9).to_sparse()],
        [torch.full((64, 64), math.nan), torch.full((64, 64), math.inf)],
    ],
)
def test_without_evidence_nothing_is_trained(tensors):
    assert detect(tensors) == Verdict(trained=False, evidence="none", score=0.0, threshold=math.inf)


class Reads(TorchDispatchMode):
    """Refuses what would wait for a device before the end."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket.__name__ not in {"_local_scalar_dense", "nonzero", "masked_select", "equal"}
        return func(*args, **(kwargs or {}))


def test_the_device_is_read_once_at_the_end_and_nothing_is_changed():
    model = nn.Sequential(nn.Embedding(70, 32, padding_idx=0), nn.Linear(32, 64), nn.LayerNorm(64), nn.Conv1d(8, 16, 3))
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    with Reads():
        verdict = detect(model)
    assert isinstance(verdict, Verdict)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


@pytest.fixture(scope="module")
def ranks(rank_launcher, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    rank_launcher.run_ranks(2, [Path(__file__).parent / "pretrained_ranks.py", folder])
    return [{what: Verdict(*one) for what, one in verdicts.items()} for verdicts in results(folder)]


@pytest.mark.parametrize(
    ("what", "trained", "evidence"),
    [
        ("new", False, "matrices"),
        ("trained", True, "matrices"),
        ("shards, new", False, "matrices"),
        ("shards, trained", True, "matrices"),
        ("shards, gains", False, "gains"),
        ("shards, adapters", True, "adapters"),
        ("stages", True, "matrices"),
        ("one rank has nothing", True, "matrices"),
    ],
)
def test_ranks_share_one_verdict(ranks, what, trained, evidence):
    first, second = (verdicts[what] for verdicts in ranks)
    assert first == second
    assert first[:2] == (trained, evidence)


def test_copies_count_once(ranks):
    """DDP's ranks are as sure as one process; more copies are no more evidence."""
    assert ranks[0]["trained"].threshold == pytest.approx(ranks[0]["trained, alone"].threshold)
    assert ranks[0]["trained"].score == pytest.approx(ranks[0]["trained, alone"].score, rel=1e-5)


PARTS = {"timm": 3, "torchvision": 3, "transformers": 6}  # of the families, for all of them take minutes


@pytest.mark.long
@pytest.mark.parametrize(
    ("package", "fewest", "part"),
    [
        pytest.param(package, fewest, part, marks=[pytest.mark.generated] if part else [])
        for package, fewest in (("timm", 24), ("torchvision", 10), ("transformers", 66))
        for part in range(PARTS[package])
    ],
)
def test_no_new_model_of_a_family_is_taken_for_trained(package, fewest, part, monkeypatch):
    """Some families, the others in `make random`."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    verdicts = {name: detect(model) for name, model in families.NEW[package](slice(part, None, PARTS[package]))}
    assert len(verdicts) >= fewest
    assert not [name for name, verdict in verdicts.items() if verdict.trained]
    if package != "transformers":
        # Of few matrices more is asked before they say "trained"; these would not, however many they were.
        assert max(verdict.score for verdict in verdicts.values()) < 1
