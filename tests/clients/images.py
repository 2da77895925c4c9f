"""An image classifier in the manner of timm's train.py, with the scheduler of the recipe in examples/recipes.

timm's model, loaders with augmentation, mixup, EMA of the weights, checkpoint saver and resume.
``images.py FOLDER EPOCHS [CHECKPOINT]``
"""

import runpy
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from client import Record
from PIL import Image
from timm.data import Mixup, create_dataset, create_loader
from timm.loss import SoftTargetCrossEntropy
from timm.models import load_checkpoint, resume_checkpoint
from timm.utils import AverageMeter, CheckpointSaver, ModelEmaV3, dispatch_clip_grad, random_seed

from autowarm import Muon

RECIPE = Path(__file__).parents[2] / "examples" / "recipes" / "timm_train.py"
CLASSES, IMAGES, SIZE, BATCH, ACCUMULATE, LR = 3, 32, 32, 16, 2, 1e-2


def make_images(folder: Path) -> None:
    """A folder of images for each class, told apart by their stripes."""
    noise = np.random.default_rng(0)
    for label in range(CLASSES):
        place = folder / "train" / str(label)
        place.mkdir(parents=True, exist_ok=True)
        for i in range(IMAGES):
            stripes = 128 + 90 * np.sin((2 + 3 * label) * 2 * np.pi * (np.arange(SIZE) + noise.integers(SIZE)) / SIZE)
            pixels = stripes[:, None, None] + noise.normal(0, 25, (SIZE, SIZE, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place / f"{i}.png")


def train_one_epoch(epoch: int, parts: Any, record: Record) -> float:
    losses = AverageMeter()
    parts.model.train()
    last_batch, updates = len(parts.loader) - 1, epoch * parts.updates_per_epoch
    parts.optimizer.zero_grad()
    for batch_idx, (inputs, target) in enumerate(parts.loader):
        need_update = batch_idx == last_batch or (batch_idx + 1) % ACCUMULATE == 0
        accum_steps = len(parts.loader) % ACCUMULATE or ACCUMULATE
        if batch_idx < len(parts.loader) // ACCUMULATE * ACCUMULATE:
            accum_steps = ACCUMULATE
        inputs, target = parts.mixup(inputs, target)
        loss = parts.criterion(parts.model(inputs), target)
        loss /= accum_steps
        loss.backward()
        parts.lr_scheduler.observe(loss * accum_steps, weight=len(inputs))
        losses.update(loss.item() * accum_steps, len(inputs))
        if not need_update:
            continue
        dispatch_clip_grad(parts.model.parameters(), 1.0)
        lr = parts.optimizer.param_groups[0]["lr"]
        parts.optimizer.step()
        parts.optimizer.zero_grad()
        updates += 1
        parts.ema.update(parts.model, step=updates)
        parts.lr_scheduler.step_update(num_updates=updates, metric=losses.avg)
        record.update(updates, lr, losses.val)
    return losses.avg


def main(folder: Path, epochs: int, checkpoint: str | None = None) -> None:
    make_images(folder)
    random_seed(0)
    model = timm.create_model("test_vit", num_classes=CLASSES, img_size=SIZE, patch_size=8)
    loader = create_loader(
        create_dataset("", str(folder / "train")),
        (3, SIZE, SIZE),
        BATCH,
        is_training=True,
        use_prefetcher=False,
        num_workers=0,
        device=torch.device("cpu"),
        auto_augment="rand-m3",
        re_prob=0.1,
    )
    updates_per_epoch = (len(loader) + ACCUMULATE - 1) // ACCUMULATE
    optimizer = Muon.from_model(model, lr=LR)
    ema = ModelEmaV3(model, decay=0.9)
    lr_scheduler = runpy.run_path(str(RECIPE))["TimmWarmup"](optimizer, epochs * updates_per_epoch)
    start = 0
    if checkpoint is not None:
        start = resume_checkpoint(model, checkpoint, optimizer, log_info=False) or 0
        load_checkpoint(ema.module, checkpoint, use_ema=True)
        lr_scheduler.step_update(start * updates_per_epoch)  # as train.py does; no update has been made
    args = Namespace(model="test_vit", epochs=epochs)
    saver = CheckpointSaver(model, optimizer, args, ema, checkpoint_dir=str(folder), decreasing=True, max_history=2)
    parts = Namespace(
        model=model,
        loader=loader,
        optimizer=optimizer,
        ema=ema,
        lr_scheduler=lr_scheduler,
        updates_per_epoch=updates_per_epoch,
        mixup=Mixup(mixup_alpha=0.1, num_classes=CLASSES),
        criterion=SoftTargetCrossEntropy(),
    )
    record = Record(folder)
    for epoch in range(start, epochs):
        random_seed(epoch)  # timm saves no random states: an epoch's own seed makes it the same when it is resumed
        loss = train_one_epoch(epoch, parts, record)
        saver.save_checkpoint(epoch, metric=loss)
        lr_scheduler.step(epoch + 1, loss)
    record.finish(ema.module, lr_scheduler.warmup)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
