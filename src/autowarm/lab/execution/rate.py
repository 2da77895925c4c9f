"""A range test on the lab's runs or a user's own task: calls `autowarm.find_rate` in place of training."""

from torch import Tensor, nn

from autowarm.rate import RateSearch, find_rate

from ..config import FindRateConfig
from ..tasks import Source, make_task
from ..training.parallel import joined
from ..training.setup import Setup


def search(config: FindRateConfig, own: Source | None = None) -> RateSearch:
    """Search with the run's model, data, precision, accumulation and clipping, on one process or torchrun's ranks.

    Args:
        config: the settings of the search.
        own: the source of the task, if the run's config names none of the lab's.

    Raises:
        LabError: the data is missing, or the user's code fails.
    """
    run = config.search_run
    with joined(run.engine) as ranks:
        task = make_task(run, own)
        setup = Setup(run, task, ranks)
        batches = task.batches(0, ranks.rows(run))

        def closure() -> Tensor:
            loss = setup.forward_backward(setup.pieces(next(batches)))
            if run.clip:
                nn.utils.clip_grad_norm_(setup.model.parameters(), run.clip)
            return loss

        return find_rate(
            setup.net, setup.optimizer, closure, lowest=config.lowest, highest=config.highest, steps=config.steps,
            process_group=ranks.group, total_steps=config.run.steps,
        )  # fmt: skip
