"""An image classifier in the manner of timm's train.py, with the scheduler of the recipe in examples/recipes.

timm's model, loaders with augmentation, mixup, EMA of the weights, checkpoint saver and resume.
``images.py FOLDER EPOCHS [CHECKPOINT]``
"""

import runpy
import sys
from argparse import Namespace
from pathlib import Path

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
    mixup, criterion, record = Mixup(mixup_alpha=0.1, num_classes=CLASSES), SoftTargetCrossEntropy(), Record(folder)
    updates, whole = start * updates_per_epoch, len(loader) // ACCUMULATE * ACCUMULATE
    for epoch in range(start, epochs):
        random_seed(epoch)  # timm saves no random states: an epoch's own seed makes it the same when it is resumed
        losses = AverageMeter()
        model.train()
        optimizer.zero_grad()
        for batch_idx, (inputs, target) in enumerate(loader):
            inputs, target = mixup(inputs, target)
            loss = criterion(model(inputs), target)
            accum_steps = ACCUMULATE if batch_idx < whole else len(loader) % ACCUMULATE
            (loss / accum_steps).backward()
            lr_scheduler.observe(loss, weight=len(inputs))
            losses.update(loss.item(), len(inputs))
            if batch_idx != len(loader) - 1 and (batch_idx + 1) % ACCUMULATE:
                continue
            dispatch_clip_grad(model.parameters(), 1.0)
            lr = optimizer.param_groups[0]["lr"]
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
            ema.update(model, step=updates)
            lr_scheduler.step_update(num_updates=updates, metric=losses.avg)
            record.update(updates, lr, losses.val)
        saver.save_checkpoint(epoch, metric=losses.avg)
        lr_scheduler.step(epoch + 1, losses.avg)
    record.finish(ema.module, lr_scheduler.warmup)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
