import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from autowarm.lab.config import DataConfig, LabError
from autowarm.lab.data import cache_folder, prepare

VOCABULARY = 280


def only_cache() -> Path:
    (file,) = cache_folder().iterdir()
    return file


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
@pytest.mark.parametrize("damage", ["truncated", "bit-flipped", "foreign"])
def test_a_damaged_cache_is_noticed_and_built_again(
    data: DataConfig, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    built = prepare(data, VOCABULARY)
    whole = only_cache().read_bytes()
    cut, foreign = whole[:-10], b'{"sha256": "0"}'
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    only_cache().write_bytes({"truncated": cut, "bit-flipped": flipped, "foreign": foreign}[damage])
    prepare.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert prepare(data, VOCABULARY).sha256 == built.sha256
    assert "damaged; rebuilding it" in caplog.text


@pytest.mark.usefixtures("_fresh_cache")
def test_builders_side_by_side_end_with_one_whole_cache(data: DataConfig) -> None:
    build = prepare.__wrapped__  # as in processes of their own: nothing is shared but the cache's folder
    with ThreadPoolExecutor(4) as pool:
        digests = {corpus.sha256 for corpus in pool.map(lambda _: build(data, VOCABULARY), range(4))}
    assert len(digests) == 1
    assert only_cache().is_file()


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
