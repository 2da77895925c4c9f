"""A range test on the lab's runs and on a user's own task: `autowarm.find_rate` where `train` would begin."""

from contextlib import nullcontext

import torch
from torch import Tensor, nn

from autowarm.rate import RateSearch, find_rate

from ..config import FindRateConfig
from ..tasks import make_task
from ..tasks.models import attend_plainly
from ..tasks.own import AdaptedTask, PackedTask
from .loop import precision_of
from .optimizers import make_optimizer
from .parallel import joined, spread, unreduced

__all__ = ["search"]


def search(config: FindRateConfig, own: PackedTask | None = None) -> RateSearch:
    """Search on the run's model, data, precision, accumulation and clipping, on one process or torchrun's ranks.

    Args:
        config: what to search on.
        own: the task of a run whose config names a user's own.

    Raises:
        LabError: the data is not there, or the user's code fails.
    """
    run = config.search_run
    with joined(run.engine) as ranks:
        task = make_task(run) if own is None else AdaptedTask(own, run)
        precision = precision_of(run, ranks.device)
        torch.manual_seed(run.seed)
        model = task.model().to(ranks.device, torch.float64 if precision == "float64" else torch.float32)
        if precision == "bfloat16" and ranks.device.type == "cpu":
            attend_plainly(model, run.model.seq_len)
        net = spread(model, run.engine, ranks)
        if isinstance(task, AdaptedTask) and run.optimizer.name in task.optimizers:
            optimizer = task.make_optimizer(run.optimizer.name, model, run.optimizer.lr)
        else:
            optimizer = make_optimizer(model, run.optimizer, ranks.group if run.engine.parallel == "ddp" else None)
        batches, count = task.batches(0, ranks.rows(run)), run.engine.accumulate
        cast = torch.autocast(ranks.device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()

        def closure() -> Tensor:
            losses = []
            for index, piece in enumerate(task.pieces(next(batches), ranks.device, count)):
                with unreduced(net, last=index + 1 == count):
                    with cast:
                        loss = task.loss(net, piece) / count
                    loss.backward()
                losses.append(loss.detach())
            if run.clip:
                nn.utils.clip_grad_norm_(model.parameters(), run.clip)
            return torch.stack(losses).sum()

        return find_rate(
            net, optimizer, closure, lowest=config.lowest, highest=config.highest, steps=config.steps,
            process_group=ranks.group,
        )  # fmt: skip
