"""For torchtitan 0.3: a container of schedulers that sees the losses, and a trainer that shows them.

In your `config_registry` module, return `WarmupTrainer.Config(...)` in place of `Trainer.Config(...)`, with
`lr_scheduler=AdaptiveWarmups.Config()`.
"""

from dataclasses import dataclass

from torchtitan.components.optimizer import LRSchedulersContainer
from torchtitan.trainer import Trainer

from autowarm import AdaptiveWarmup


class AdaptiveWarmups(LRSchedulersContainer):
    """One for each optimizer; they see the same losses, so their rates keep their ratio."""

    @dataclass(kw_only=True, slots=True)
    class Config(LRSchedulersContainer.Config):
        warmup_steps: int = 0  # not used
        target_loss: float | None = None

        def build(self, *, optimizers, training_steps):
            steps = self.total_steps or training_steps
            return AdaptiveWarmups(optimizers, steps, target_loss=self.target_loss)

    def __init__(self, optimizers, total_steps, **options):
        self.schedulers = [AdaptiveWarmup(one, total_steps, **options) for one in optimizers]

    def observe(self, loss, weight=1.0):
        for scheduler in self.schedulers:
            scheduler.observe(loss, weight)

    def state_dict(self):
        return {"schedulers": [scheduler.state_dict() for scheduler in self.schedulers]}

    def load_state_dict(self, state_dict):
        for scheduler, saved in zip(self.schedulers, state_dict["schedulers"], strict=True):
            scheduler.load_state_dict(saved)


class WarmupTrainer(Trainer):
    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        pass

    def forward_backward_step(self, **batch):
        loss = super().forward_backward_step(**batch)
        # Divided by the tokens of all micro-batches on all ranks, it is a share of the update's
        # loss; the scheduler takes the shares' mean.
        mesh = self.parallel_dims.get_optional_mesh("loss")
        shares = self.gradient_accumulation_steps * (mesh.size() if mesh is not None else 1)
        known = not self.parallel_dims.pp_enabled or self.pp_has_last_stage
        self.lr_schedulers.observe(loss.detach() * shares, weight=float(known))
        return loss
