"""A step on GPUs, on tensors without data: its operators, what it reads back, and the memory that it takes."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import _StridedShard

from autowarm import LMO, Lion, Muon, SignSGD
from tests.optim.fake_device import LLAMA_1B, LLAMA_8B, LLAMA_124M, eight_ranks, fake_parameters, fake_shards, watched
from tests.optim.makers import EVERY

# Of one step: operators on one GPU and on one of 8 ranks, and gigabytes of temporaries.
MOST = {"124M": (LLAMA_124M, 190, 200, 0.3), "1B": (LLAMA_1B, 415, 350, 0.8), "8B": (LLAMA_8B, 1150, 850, 1.6)}
NAMES = ["muon", "muon, newton-schulz", "adamw part", "lion", "signsgd", "normsgd", "rows"]

pytestmark = pytest.mark.usefixtures("accelerator")


def step_of(opt):
    """The second step: the first makes the state."""
    opt.step()
    return watched(opt.step)


@pytest.fixture(scope="module")
def meshes():
    with eight_ranks() as meshes:
        yield meshes


@pytest.mark.parametrize(
    "how",
    [torch.float32, torch.bfloat16, *(pytest.param(how, marks=pytest.mark.long) for how in ("ddp", "fsdp", "hsdp"))],
    ids=str,
)
@pytest.mark.parametrize("size", ["124M", "1B", pytest.param("8B", marks=pytest.mark.long)])  # which takes seconds
def test_operators_and_memory(size, how, meshes):
    shapes, alone, shared, gigabytes = MOST[size]
    options = {"lr": 0.1, "weight_decay": 0.1}
    with FakeTensorMode(allow_non_fake_inputs=True):
        if how in meshes:
            opt = Muon(fake_shards(shapes, meshes[how]), **options)
        elif how == "ddp":
            opt = Muon(fake_parameters(shapes), process_group=dist.group.WORLD, **options)
        else:
            opt = Muon(fake_parameters(shapes, dtype=how), **options)
        step = step_of(opt)
    assert len(step.operators) <= (shared if isinstance(how, str) else alone)
    assert step.peak <= gigabytes * 1e9
    assert not step.host_reads


def test_a_round_is_on_its_way_while_another_is_orthogonalised(meshes):
    with FakeTensorMode(allow_non_fake_inputs=True):
        names = step_of(Muon(fake_shards(LLAMA_8B[:64], meshes["fsdp"]), lr=0.1)).operators
    exchanges = [i for i, name in enumerate(names) if name == "c10d::alltoall_base_"]
    # The first two bring two rounds; only then the first of them is multiplied.
    assert len(exchanges) > 4
    assert "aten::bmm" not in names[: exchanges[1]]
    assert "aten::bmm" in names[exchanges[1] : exchanges[2]]


@pytest.mark.parametrize(
    ("name", "lr"),
    [(name, lr) for name in NAMES for lr in ("number", "tensor") if (name, lr) != ("adamw part", "tensor")],
)
def test_no_step_reads_back(name, lr):
    shapes = [(300, 200)] * 3 + [(200, 300), (64, 48, 3, 3), (0, 48)]
    with FakeTensorMode(allow_non_fake_inputs=True):
        params = fake_parameters(shapes)
        params.append(nn.Parameter(torch.empty(40, 30, device="cuda:0").T))  # a gradient that lies in memory otherwise
        params[-1].grad = torch.empty(30, 40, device="cuda:0")
        opt = EVERY[name](params, weight_decay=0.1)
        if lr == "tensor":
            for group in opt.param_groups:
                group["lr"] = torch.empty((), device="cuda:0")
        assert not step_of(opt).host_reads


def test_each_device_has_its_own_stacks(accelerator):
    with FakeTensorMode(allow_non_fake_inputs=True):
        params = [*fake_parameters([(300, 200)] * 2), *fake_parameters([(300, 200)] * 2, device="cuda:1")]
        opt = Muon([{"params": params[::2]}, {"params": params[1::2]}], lr=0.1)
        assert not step_of(opt).host_reads


@pytest.mark.parametrize("index", [0, 1])
def test_what_is_read_late_is_awaited_on_the_stream_that_copies_it(accelerator, index):
    """The current device is cuda:0, whatever the tensors' is."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        Lion(fake_parameters([(4, 4)], device=f"cuda:{index}"), lr=0.1).step()
    assert accelerator.recorded == [torch.device("cuda", index)]


@pytest.mark.parametrize("name", NAMES)
def test_a_capture_wants_a_capturable_optimizer_that_has_stepped(name, accelerator):
    def optimizer(**options):
        # A rate that is read at construction has a value, which fake tensors do not have.
        opt = EVERY[name](fake_parameters([(40, 30)] * 2), weight_decay=0.1)
        for group in opt.param_groups:
            group.update(options)
        return opt

    with FakeTensorMode(allow_non_fake_inputs=True):
        rate = torch.empty((), device="cuda:0")
        plain, early, ready = optimizer(), optimizer(lr=rate, capturable=True), optimizer(lr=rate, capturable=True)
        plain.step()
        if name != "adamw part":  # PyTorch has no fake fused AdamW with a tensor rate
            ready.step()
        else:  # a graph would make the averages anew at each replay, also of a tensor that joins a step late
            early._skipped.prepare(torch.device("cuda:0"))
        accelerator.capturing = True
        with pytest.raises(RuntimeError, match="capturable=True"):
            plain.step()
        with pytest.raises(RuntimeError, match="make one step first"):
            early.step()
        known = len(accelerator.recorded)
        assert name == "adamw part" or not watched(ready.step).host_reads
    assert len(accelerator.recorded) == known  # an event in a graph is recorded by no replay


@pytest.mark.parametrize("cls", [Muon, LMO])
def test_a_tensor_with_several_strides_is_refused_when_it_is_given(cls, meshes):
    with FakeTensorMode(allow_non_fake_inputs=True):
        local = torch.empty(4, 2, device="cuda:0")
        size = {"shape": torch.Size((8, 8)), "stride": (8, 1)}
        strided = [_StridedShard(0, split_factor=2), _StridedShard(1, split_factor=2)]
        cut = DTensor.from_local(local, meshes["hsdp"], strided, run_check=False, **size)
        opt = cls(fake_parameters([(8, 8)]))
        with pytest.raises(NotImplementedError, match="sharded with several strides"):
            opt.add_param_group({"params": [nn.Parameter(cut)]})
        assert len(opt.param_groups) == 1
        SignSGD([nn.Parameter(cut)], lr=0.1)  # needs no whole tensor
        LMO([nn.Parameter(cut)], lr=0.1, geometry="rows")  # needs sums alone
