"""Run on two processes: a Trainer and a loop of one's own, each whole and resumed."""

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from transformers import TrainingArguments

from autowarm import Muon
from autowarm.integrations.accelerate import WarmupScheduler
from autowarm.integrations.transformers import WarmupTrainer
from autowarm.others import geometry_of, kappa_of
from tests.integrations.llama import make_data, make_model
from tests.integrations.plain import accelerated
from tests.programs import leave

torch.set_num_threads(1)
STEPS, LR, FOLDER = 12, 0.02, Path(sys.argv[1])


class Recording(WarmupTrainer):
    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        self.seen = [*getattr(self, "seen", []), loss.item() * self.args.gradient_accumulation_steps]
        return loss


def with_trainer() -> dict[str, Any]:
    def trainer() -> Recording:
        args = TrainingArguments(
            str(FOLDER / "trainer"), max_steps=STEPS, per_device_train_batch_size=2, gradient_accumulation_steps=2,
            learning_rate=LR, logging_steps=1, save_steps=5, report_to="none", use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        return Recording(make_model(), args, optim="muon", train_dataset=make_data(96))

    def rates(t: Recording) -> list[float]:
        return [entry["learning_rate"] for entry in t.state.log_history if "learning_rate" in entry]

    whole = trainer()
    whole.train()
    resumed = trainer()
    resumed.train(resume_from_checkpoint=str(FOLDER / "trainer" / "checkpoint-5"))
    optimizer = whole.lr_scheduler.optimizer
    return {
        "rates": rates(whole),
        "resumed": rates(resumed),
        "losses": [whole.seen[i : i + 2] for i in range(0, len(whole.seen), 2)],
        "kappa": kappa_of(optimizer, geometry_of(optimizer)),
        "phase": whole.lr_scheduler.phase,
    }


def with_a_loop() -> dict[str, Any]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    rates: list[float] = []
    losses: list[float] = []

    def prepared() -> tuple[Any, Any, WarmupScheduler]:
        model = make_model()
        model, opt = accelerator.prepare(model, Muon.from_model(model, lr=LR))
        sched = WarmupScheduler(accelerator, opt, STEPS)
        assert accelerator.prepare(sched) is sched
        return model, opt, sched

    def micro_loss(model: Any, i: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(10 * i + accelerator.process_index)
        ids = torch.randint(32, (2, 12), generator=generator)
        loss = model(input_ids=ids, labels=ids).loss
        losses.append(loss.item())
        return loss

    def train(parts: tuple[Any, Any, WarmupScheduler], updates: range) -> None:
        rates.append(parts[2].get_last_lr()[0])
        # The dataloader, which would say so, is left out: updates are every second micro-batch.
        micro_batches = range(2 * updates.start, 2 * updates.stop)
        rates.extend(accelerated(accelerator, *parts, micro_loss, micro_batches, lambda i: 24)[:-1])

    train(prepared(), range(5))
    accelerator.save_state(str(FOLDER / "state"))
    accelerator.free_memory()
    parts = prepared()
    accelerator.load_state(str(FOLDER / "state"))
    train(parts, range(5, STEPS))
    accelerator.free_memory()

    by_update = [losses[i : i + 2] for i in range(0, len(losses), 2)]
    return {"rates": rates, "losses": by_update}


result = {"trainer": with_trainer(), "loop": with_a_loop()}
leave(FOLDER, result)
