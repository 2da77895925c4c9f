"""Early stopping with Lightning that lets the rate decay first."""

import math

from lightning.pytorch.callbacks import EarlyStopping


class DecayThenStop(EarlyStopping):
    """Where training would stop, decays over ``steps`` more updates first."""

    def __init__(self, steps, **options):
        super().__init__(**options)
        self.steps, self.end = steps, None

    def setup(self, trainer, pl_module, stage):
        super().setup(trainer, pl_module, stage)
        self.end = None  # of a run before; a checkpoint is loaded after this

    def state_dict(self):
        return super().state_dict() | {"end": self.end}

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.end = state_dict.get("end")

    def on_train_start(self, trainer, pl_module):
        if self.end is not None:  # resumed during that decay
            trainer.fit_loop.epoch_loop.max_steps = self.end

    def _run_early_stopping_check(self, trainer):  # after an epoch or a validation
        if self.end is not None or trainer.should_stop:
            return
        super()._run_early_stopping_check(trainer)
        scheduler = trainer.lr_scheduler_configs[0].scheduler
        left = min(self.steps, (scheduler.total_steps or math.inf) - scheduler.last_epoch)
        if trainer.should_stop and left >= 1:
            trainer.should_stop = False
            scheduler.decay_now(left)
            self.end = trainer.fit_loop.epoch_loop.max_steps = trainer.global_step + left

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.end:  # so that Lightning validates what has decayed before it saves it
            trainer.should_stop, trainer.check_val_every_n_epoch = True, 1
