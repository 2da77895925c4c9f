"""Early stopping with Lightning that lets the rate decay first."""

from lightning.pytorch.callbacks import EarlyStopping


class DecayThenStop(EarlyStopping):
    """Where training would stop, decays over ``steps`` more updates first."""

    def __init__(self, steps, **options):
        super().__init__(check_on_train_epoch_end=True, **options)
        self.steps, self.decaying = steps, False

    def _end_with(self, trainer, scheduler):
        self.decaying, trainer.fit_loop.epoch_loop.max_steps = True, scheduler.total_steps

    def on_train_start(self, trainer, pl_module):
        scheduler = trainer.lr_scheduler_configs[0].scheduler
        if scheduler.total_steps < trainer.estimated_stepping_batches:  # resumed during that decay
            self._end_with(trainer, scheduler)

    def on_train_epoch_end(self, trainer, pl_module):
        if self.decaying:
            return
        super().on_train_epoch_end(trainer, pl_module)
        if trainer.should_stop:
            trainer.should_stop = False
            scheduler = trainer.lr_scheduler_configs[0].scheduler
            scheduler.decay_now(min(self.steps, scheduler.total_steps - trainer.global_step))
            self._end_with(trainer, scheduler)
