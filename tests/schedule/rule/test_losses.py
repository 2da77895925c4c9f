"""What becomes of the losses it is given: whatever they are, the rates are finite and in (0, lr]."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

from autowarm import AdaptiveWarmup
from tests.cases import each
from tests.schedule.schedule_runs import falling, made, make_optimizer


def of_micro_batches(scheduler: AdaptiveWarmup, loss: float) -> None:
    scheduler.observe(torch.tensor(loss + 3.0, requires_grad=True) * 1.0, weight=1)
    scheduler.observe(loss - 1.0, weight=3)
    assert not any(observation.loss.requires_grad for observation in scheduler._losses.pending[:1])  # no graph is kept
    scheduler.step()


def in_a_tensor_that_is_used_again(scheduler: AdaptiveWarmup, loss: float) -> None:
    tensor = torch.tensor(loss)
    scheduler.observe(tensor)
    tensor /= 8
    scheduler.step()


WAYS: list[Callable[[AdaptiveWarmup, float], object]] = [
    of_micro_batches,
    in_a_tensor_that_is_used_again,
    lambda scheduler, loss: scheduler.step(metrics=loss),  # as for a ReduceLROnPlateau
    lambda scheduler, loss: scheduler.step(torch.tensor(loss, dtype=torch.float16)),
    lambda scheduler, loss: scheduler.step(torch.tensor(loss, dtype=torch.bfloat16)),
]


@each("give", WAYS)
def test_a_loss_given_in_another_way_is_the_same_loss(give: Callable[[AdaptiveWarmup, float], object]) -> None:
    plain, other = (AdaptiveWarmup(make_optimizer(), 40, max_warmup=1.0) for _ in range(2))
    for t in range(40):
        for scheduler in (plain, other):
            scheduler.optimizer.step()
        loss = float(torch.tensor(falling(pace=8.0)(t), dtype=torch.bfloat16))  # a number of every precision
        plain.step(loss)
        give(other, loss)
        assert other.get_last_lr() == pytest.approx(plain.get_last_lr(), rel=1e-6)
    assert other.ended_by == "loss"


def test_a_loss_on_a_mesh_is_its_whole_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        scheduler = made(False, 10)
        scheduler.step(distribute_tensor(torch.tensor(4.0), init_device_mesh("cpu", (1,)), [Replicate()]))
        assert scheduler.profile.gap0 == pytest.approx(2.8)
    finally:
        dist.destroy_process_group()


WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
REFUSED: dict[tuple[type[Exception], str], list[object]] = {
    (TypeError, "a loss is a (real )?number"): ["2.0", b"2.0", 1j, torch.tensor(1j), torch.tensor(True), {}, object],
    (TypeError, r"epoch.* got (the int|a tensor of torch\.u?int)"): [
        *(np.int64(3), np.int32(0), np.uint8(1), 0, 3, True, np.array(3), np.array(True), np.bool_(True)),
        *(torch.full(shape, 3, dtype=dtype) for dtype in WHOLE for shape in ((), (1, 1))),
    ],
}


@each("method", ["step", "observe"])
@each("tensor", [False, True])
def test_numbers_of_every_kind_are_losses_and_what_is_none_is_refused(method: str, tensor: bool) -> None:
    for loss in (np.float32(4), np.float64(4), np.array(4.0), np.float16(4), torch.tensor([[4.0]])):
        scheduler = made(tensor, 10)
        scheduler.optimizer.step()
        getattr(scheduler, method)(loss)
        if method == "observe":
            scheduler.step()
        assert scheduler.profile.gap0 == pytest.approx(2.8)
    for (error, message), losses in REFUSED.items():
        for loss in losses:
            scheduler = made(tensor, 10)
            with pytest.raises(error, match=message):
                getattr(scheduler, method)(loss)
            assert scheduler.state_dict() == made(tensor, 10).state_dict()
