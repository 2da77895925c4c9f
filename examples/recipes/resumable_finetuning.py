"""Lightning's BackboneFinetuning, with a backbone that stays thawed when a run is resumed.

Lightning 2.6 leaves a backbone that was added before the checkpoint frozen, under any scheduler.
"""

from lightning.pytorch.callbacks import BackboneFinetuning


class ResumableFinetuning(BackboneFinetuning):
    def on_fit_start(self, trainer, pl_module):
        super().on_fit_start(trainer, pl_module)
        for group in trainer.optimizers[0].param_groups:
            for p in group["params"]:
                p.requires_grad_(True)
