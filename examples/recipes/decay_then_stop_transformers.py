"""Early stopping with transformers that lets the rate decay first."""

from transformers import EarlyStoppingCallback


class DecayThenStop(EarlyStoppingCallback):
    """Where training would stop, decays over ``steps`` more updates first."""

    def __init__(self, steps, **options):
        super().__init__(**options)
        self.steps, self.decaying = steps, False

    def on_train_begin(self, args, state, control, lr_scheduler=None, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        if lr_scheduler.total_steps < state.max_steps:  # resumed during that decay
            self.decaying, state.max_steps = True, lr_scheduler.total_steps

    def on_evaluate(self, args, state, control, lr_scheduler=None, **kwargs):
        stopping = control.should_training_stop
        super().on_evaluate(args, state, control, **kwargs)
        if self.decaying:
            control.should_training_stop = stopping
        elif control.should_training_stop and state.global_step < state.max_steps:
            self.decaying, control.should_training_stop = True, stopping
            left = min(self.steps, state.max_steps - state.global_step)
            lr_scheduler.decay_now(left)
            state.max_steps = state.global_step + left
