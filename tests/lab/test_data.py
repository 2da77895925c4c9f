import logging
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from autowarm.lab.config import DataConfig, LabError
from autowarm.lab.data import batch, cache_folder, prepare, validation_batches

VOCABULARY = 280


def only_cache() -> Path:
    (folder,) = cache_folder().glob("corpus-*")
    return folder


@pytest.fixture
def _fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("AUTOWARM_CACHE", str(tmp_path / "cache"))
    prepare.cache_clear()
    yield
    prepare.cache_clear()


@pytest.mark.usefixtures("_fresh_cache")
def test_the_cache_gives_back_the_same_tokens(data: DataConfig) -> None:
    built = prepare(data, VOCABULARY)
    prepare.cache_clear()
    read = prepare(data, VOCABULARY)
    assert built.sha256 == read.sha256
    assert np.array_equal(built.train, read.train)
    assert np.array_equal(built.val, read.val)
    assert built.train.dtype == np.uint16
    assert built.train.max() < VOCABULARY
    assert 0 < len(built.val) < len(built.train)


@pytest.mark.usefixtures("_fresh_cache")
@pytest.mark.parametrize("damage", ["truncate", "delete", "manifest"])
def test_a_damaged_cache_is_noticed_and_built_again(
    data: DataConfig, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    built = prepare(data, VOCABULARY)
    file = only_cache() / "train.npy"
    if damage == "truncate":
        file.write_bytes(file.read_bytes()[:-10])
    elif damage == "delete":
        file.unlink()
    else:
        (only_cache() / "manifest.json").write_text("{")
    prepare.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert prepare(data, VOCABULARY).sha256 == built.sha256
    assert "damaged and is built again" in caplog.text


@pytest.mark.usefixtures("_fresh_cache")
def test_builders_side_by_side_end_with_one_whole_cache(data: DataConfig) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        digests = {future.result().sha256 for future in [pool.submit(prepare, data, VOCABULARY) for _ in range(4)]}
    assert len(digests) == 1
    assert [path.name for path in cache_folder().iterdir()] == [only_cache().name]


@pytest.mark.usefixtures("_fresh_cache")
def test_changed_text_is_another_corpus(data: DataConfig, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(data.corpus, copy)
    same = prepare(DataConfig(corpus=str(copy)), VOCABULARY)
    assert same.sha256 == prepare(data, VOCABULARY).sha256
    (copy / "text0.txt").write_text("something else")
    prepare.cache_clear()
    assert prepare(DataConfig(corpus=str(copy)), VOCABULARY).sha256 != same.sha256


def test_the_embedded_corpus_is_there_and_bounded() -> None:
    corpus = prepare(DataConfig(max_bytes=500_000), 300)
    assert corpus.name == "python"
    assert 50_000 < corpus.tokens < 500_000


def test_a_missing_or_too_small_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"no folder .*nowhere"):
        prepare(DataConfig(corpus=str(tmp_path / "nowhere")), VOCABULARY)
    (tmp_path / "one.txt").write_text("alone")
    with pytest.raises(LabError, match="too few for a training and a validation part"):
        prepare(DataConfig(corpus=str(tmp_path)), VOCABULARY)


def test_a_batch_is_a_pure_function_of_seed_and_step() -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    first = batch(tokens, seed=3, step=7, batch_size=4, seq_len=8)
    batch(tokens, seed=3, step=8, batch_size=4, seq_len=8)
    assert np.array_equal(first, batch(tokens, seed=3, step=7, batch_size=4, seq_len=8))
    assert not np.array_equal(first, batch(tokens, seed=3, step=8, batch_size=4, seq_len=8))
    assert not np.array_equal(first, batch(tokens, seed=4, step=7, batch_size=4, seq_len=8))
    assert first.shape == (4, 9)
    assert (np.diff(first) == 1).all()  # each row is one stretch of text


def test_every_token_can_be_drawn() -> None:
    tokens = np.arange(10, dtype=np.uint16)
    drawn = {int(t) for step in range(200) for t in batch(tokens, 0, step, 2, 4).ravel()}
    assert drawn == set(range(10))


def test_validation_covers_the_whole_part_evenly_and_always_alike() -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    batches = list(validation_batches(tokens, count=3, batch_size=5, seq_len=9))
    assert [b.shape for b in batches] == [(5, 10)] * 3
    assert batches[0][0, 0] == 0
    assert batches[-1][-1, -1] == 999


def test_too_short_a_part_says_how_short() -> None:
    with pytest.raises(LabError, match="needs 9 tokens, the corpus part has 5"):
        batch(np.zeros(5, dtype=np.uint16), 0, 0, 1, 8)
