"""For the train.py of timm 1.0.27 or later: the scheduler in place of timm's own.

Replace `create_scheduler_v2` by this, between the optimizer and the loading of a checkpoint:

    updates_per_epoch = (len(loader_train) + args.grad_accum_steps - 1) // args.grad_accum_steps
    num_epochs = args.epochs
    lr_scheduler = TimmWarmup(optimizer, num_epochs * updates_per_epoch)

Before `losses_m.update(…)`, add this (timm has divided the loss by `accum_steps`):

    lr_scheduler.observe(loss * accum_steps, weight=batch_size)

To log the schedule in `summary.csv` and W&B, add this before `utils.update_summary(…)`:

    train_metrics.update(loggable_metrics(lr_scheduler.warmup))
"""

from autowarm import AdaptiveWarmup


class TimmWarmup:
    """`AdaptiveWarmup` with the methods of timm's schedulers."""

    t_in_epochs = False  # train.py prints it

    def __init__(self, optimizer, total_steps, **options):
        self.warmup = AdaptiveWarmup(optimizer, total_steps, **options)
        # timm's checkpoints hold the optimizer, and no scheduler: it travels along.
        save, load = self.state_dict, self.load_state_dict
        optimizer.register_state_dict_post_hook(lambda _, state: state | {"warmup": save()})
        optimizer.register_load_state_dict_pre_hook(lambda _, state: load(state["warmup"]))

    def observe(self, loss, weight=1.0):
        self.warmup.observe(loss, weight)

    def step_update(self, num_updates, metric=None):
        self.warmup.step()

    def step(self, epoch, metric=None):
        pass  # the end of an epoch is no update

    def state_dict(self):
        return self.warmup.state_dict()

    def load_state_dict(self, state):
        self.warmup.load_state_dict(state)
