"""What `Alarms` says, by kind: what was seen, and what to write."""

WORDS = {
    "idle": (
        "step() was called {calls} times in a row, but {optimizer}, which the schedule watches, made no update, so the "
        "rates stay as they are. For another optimizer make a new scheduler; for several that step in the backward "
        "pass, one for autowarm.optim.Together(*optimizers). With micro-batches, call observe(loss) for each and "
        "step() once an update. A GradScaler skips every update if no gradient is finite any more"
    ),
    "micro-batches": (
        "step() was called between {calls} of the first {updates} updates, as for each micro-batch, but updates count: "
        "call observe(loss) for each micro-batch and step() once an update, and give total_steps in updates"
    ),
    "outside": (
        "the rate was changed from outside in {row} updates in a row, the last time to {rate:g}, where the schedule "
        "had written {written:g}. The schedule owns the rates and writes its own at each step: delete the other "
        "warm-up, cap or scheduler, or this one. base_lrs holds the peak rates, which you may change"
    ),
    "unsettled": (
        "the optimizer came with lr={lr:g} and initial_lr={peak:g}, which an earlier scheduler or a loaded state has "
        "left: {peak:g} is taken as the peak rate. If the peak is {lr:g}, delete the groups' initial_lr before you "
        "make the scheduler; if a run goes on, load the schedule's own state (load_state_dict)"
    ),
    "unobserved": (
        "step() was called without a loss, so time alone sets the warm-up's rate: call step(loss), or observe(loss) "
        "before step(). If a trainer calls step(), autowarm.integrations passes it the loss"
    ),
    "scale": (
        "no target loss f* can be derived from the first losses ({losses}), which are zero or differ too much: time "
        "alone sets the warm-up. Give target_loss; pass observe() the number of tokens or samples as weight where "
        "micro-batches differ in size, and leave out batches without a label"
    ),
    "rising": (
        "the values given as the loss have risen from {low:.4g} to {high:.4g} in {count} updates. step() takes the "
        "loss, which falls, and no accuracy or reward; if it is the loss, the peak rate is too high"
    ),
    "unstepped": (
        "{made} updates were made since the schedule's last step (or its construction), all at one rate: call "
        "step(loss) after every optimizer.step(). total_steps counts updates, too, not epochs"
    ),
    "resumed": (
        "the optimizer has made {made} updates by its state, and this schedule begins a warm-up at lr/div. If a run "
        "goes on, load the schedule's own state, too (load_state_dict); trained=True says that a new warm-up is meant"
    ),
    "no gradient": (
        "no tensor of {optimizer} had a gradient in {made} updates, so they changed nothing: it holds other tensors "
        "than the model that computes the loss. Make optimizer and scheduler after copying the model, moving it to "
        "another device, or load_state_dict(assign=True)"
    ),
    "nonfinite": (
        "the loss was NaN or infinite {when} update {updates}: the schedule ignores it but counts the update (warned "
        "once). An optimizer that has made this update may have NaN weights: skip it there, or pass recover=True"
    ),
    "stalled": "the run of total_steps={total} ends still in warm-up: {why}",
    "overrun": (
        "more than total_steps={total} updates were made: the rate stays where it is. total_steps counts updates, not "
        "epochs; extend(total_steps) moves the end"
    ),
}
DIVERGED = (
    "the loss was not finite {failures} times in a row, up to step {updates}: {why}. max_nonfinite=None turns this off"
)
BROKEN = "the run has diverged, for weights are not finite. Lower the peak rate or clip gradients"
RECOVERY = "; recover=True goes back to healthy weights by itself"
EMPTY = (
    "all weights are finite, and the last gradients are {gradients}: the batches give no finite loss. Look for batches "
    "without a label (all of them masked), and for an overflow in the loss"
)
NO_LOSS = "no finite loss was observed{when}. Call step(loss) at each update"
NO_SCALE = "no f* can be derived from the first losses, and there is no ramp. Give target_loss, or a max_warmup"
NO_FALL = (
    "the gap to target_loss={fstar:.4g} never fell below peak_gap={peak_gap:.4g}. Use the default max_warmup, or raise "
    "peak_gap or target_loss"
)
