"""Early stopping with transformers that lets the rate decay first."""

from transformers import EarlyStoppingCallback


class DecayThenStop(EarlyStoppingCallback):
    """Where training would stop, decays over ``steps`` more updates first."""

    def __init__(self, steps, **options):
        super().__init__(**options)
        self.steps, self.end = steps, None

    def state(self):
        state = super().state()
        state["args"]["steps"], state["attributes"]["end"] = self.steps, self.end
        return state

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        saved = state.stateful_callbacks.get(type(self).__name__, self.state())
        # A run that begins anew, as each trial of a search does, finds the end of the run before.
        self.end = saved["attributes"].get("end") if state.global_step > 0 else None
        if self.end is not None:  # resumed during that decay
            state.max_steps = self.end

    def on_evaluate(self, args, state, control, lr_scheduler=None, **kwargs):
        stopping = control.should_training_stop
        super().on_evaluate(args, state, control, **kwargs)
        if self.end is not None:
            control.should_training_stop = stopping
        elif control.should_training_stop and state.global_step < state.max_steps:
            control.should_training_stop = stopping
            left = min(self.steps, state.max_steps - state.global_step)
            lr_scheduler.decay_now(left)
            self.end = state.max_steps = state.global_step + left
