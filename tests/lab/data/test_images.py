import dataclasses
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from autowarm.lab.config import DataConfig, LabError, ModelConfig, OptimizerConfig, RunConfig, ScheduleConfig
from autowarm.lab.data.images import Images, digits, open_images, training_batches, validation_batches
from autowarm.lab.tasks.models import classifier
from autowarm.lab.training.loop import train
from autowarm.lab.training.metrics import read_metrics

from ..helpers import resumed

SWIN = ModelConfig(name="swin", layers=2, width=16, heads=2)
ALL = slice(None)


def test_every_epoch_shows_each_image_once_in_an_order_of_its_own() -> None:
    pairs = [(torch.zeros(1), label) for label in range(10)]
    images = Images("numbered", "", pairs, pairs, 10, (1, 1, 1))

    def order(seed: int, epoch: int) -> list[int]:
        [(_, labels)] = training_batches(images, seed, epoch, epoch + 1, 10, ALL)
        return labels.tolist()

    assert sorted(order(0, 0)) == sorted(order(0, 1)) == list(range(10))
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def test_digits_are_split_once_and_cover_all_labels() -> None:
    images = digits()
    assert len(images.train) + len(images.val) == 1797
    assert {label for _, label in images.val} == set(range(10))
    batches = list(validation_batches(images, 3, 8, ALL))
    assert [tuple(pixels.shape) for pixels, _ in batches] == [(8, 1, 8, 8)] * 3


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataConfig:
    from PIL import Image
    from timm.data import ImageDataset

    draw = np.random.default_rng(0)
    for part, count in (("train", 6), ("validation", 3)):
        for label in ("cat", "dog"):
            (tmp_path / part / label).mkdir(parents=True)
            for i in range(count):
                pixels = draw.integers(0, 255, (40, 50, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / label / f"{i}.png")
    monkeypatch.setattr(
        "timm.data.create_dataset", lambda name, root, split, is_training: ImageDataset(tmp_path / split)
    )
    return DataConfig(images="hfds/pictures")


def test_transforms_follow_from_the_place_whatever_the_workers_and_the_ranks(pictures: DataConfig) -> None:
    images = open_images(pictures, "swin_base_patch4_window7_224")
    assert images.shape == (3, 224, 224)
    whole = list(training_batches(images, 0, 2, 4, 4, ALL))
    assert whole[0][0].shape == (4, 3, 224, 224)
    torch.rand(5)
    resumed = list(training_batches(images, 0, 3, 4, 4, slice(2, 4), workers=1))
    assert torch.equal(whole[1][0][2:], resumed[0][0])
    assert torch.equal(whole[1][1][2:], resumed[0][1])
    assert not torch.equal(whole[0][0], whole[1][0])


def test_missing_images_say_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timm.data.create_dataset", mock.Mock(side_effect=ConnectionError("no network")))
    with pytest.raises(LabError, match=r"part 'train' cannot be read .*'digits' needs no files"):
        open_images(DataConfig(images="hfds/nobody/nothing"), "swin_base_patch4_window7_224")


def test_the_paper_s_swin_is_timm_s() -> None:
    with torch.device("meta"):
        model = classifier(ModelConfig(name="swin_base_patch4_window7_224"), 0, 1000, (3, 224, 224))
    assert sum(p.numel() for p in model.parameters()) == 87_768_224
    with pytest.raises(ValueError, match="did you mean 'swin_base_patch4_window7_224'"):
        RunConfig(model=ModelConfig(name="swin_base_patch4_window_224"))
    with pytest.raises(ValueError, match="data.images must be digits or hfds/NAME, got 'folder'"):
        RunConfig(model=SWIN, data=DataConfig(images="folder"))


def swin_run(steps: int) -> RunConfig:
    return RunConfig(
        model=SWIN, optimizer=OptimizerConfig(name="muon", lr=0.03),
        schedule=ScheduleConfig(kind="linear", warmup_steps=5), steps=steps, batch_size=32, eval_batches=4,
        checkpoint_every=4,
    )  # fmt: skip


def test_a_run_on_images_goes_on_to_the_bit_whatever_the_workers(tmp_path: Path) -> None:
    """Dropout, too, whose random numbers loading must not change."""
    config = swin_run(8)
    straight = train(config, tmp_path / "straight")
    broken = resumed(config, tmp_path / "broken", 5)
    loading = dataclasses.replace(config, data=dataclasses.replace(config.data, workers=1))
    apart = train(loading, tmp_path / "apart")
    assert broken["metric"] == straight["metric"] == apart["metric"]
    losses = [[row["loss"] for row in read_metrics(tmp_path / name)] for name in ("straight", "broken", "apart")]
    assert losses[0] == losses[1] == losses[2]
