import logging
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autowarm.lab.config import DataConfig, LabError
from autowarm.lab.data import cache_folder, prepare, text
from autowarm.lab.data.text import read_documents

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
@pytest.mark.parametrize("damage", ["none", "truncated", "bit-flipped", "foreign"])
def test_the_cache_gives_back_the_same_tokens_and_is_built_again_if_damaged(
    data: DataConfig, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    built = prepare(data, VOCABULARY)
    assert built.train.dtype == np.uint16
    assert built.train.max() < VOCABULARY
    assert 0 < len(built.val) < len(built.train)
    whole, tokens = only_cache().read_bytes(), [np.array(part) for part in (built.train, built.val)]  # they are mapped
    cut, foreign = whole[:-10], b'{"sha256": "0"}'
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    only_cache().write_bytes({"none": whole, "truncated": cut, "bit-flipped": flipped, "foreign": foreign}[damage])
    prepare.cache_clear()
    with caplog.at_level(logging.WARNING):
        read = prepare(data, VOCABULARY)
    assert built.sha256 == read.sha256
    assert all(map(np.array_equal, tokens, (read.train, read.val)))
    assert ("damaged; rebuilding it" in caplog.text) == (damage != "none")


@pytest.mark.usefixtures("_fresh_cache")
def test_changed_text_is_another_corpus(data: DataConfig, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(data.corpus, copy)
    same = prepare(DataConfig(corpus=str(copy)), VOCABULARY)
    assert same.sha256 == prepare(data, VOCABULARY).sha256
    (copy / "text0.txt").write_text("something else")
    prepare.cache_clear()
    assert prepare(DataConfig(corpus=str(copy)), VOCABULARY).sha256 != same.sha256


@pytest.mark.long
def test_the_embedded_corpus_is_there_and_bounded() -> None:
    corpus = prepare(DataConfig(max_bytes=500_000), 300)
    assert corpus.name == "python"
    assert 50_000 < corpus.tokens < 500_000


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30), max_bytes=st.integers(1, 400))
def test_documents_are_chosen_in_the_order_of_their_hashes_until_one_does_not_fit(
    sizes: list[int], max_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, size in enumerate(sizes):
            Path(folder, f"{number}.txt").write_text("é" * size)
        chosen = read_documents(DataConfig(corpus=folder, max_bytes=max_bytes))
    expected: list[int] = []
    for number in sorted(range(len(sizes)), key=lambda number: text._hash(f"order {number}.txt")):
        if sizes[number]:
            if expected and sum(2 * sizes[one] for one in [*expected, number]) > max_bytes:
                break
            expected.append(number)
    assert chosen == [(f"{number}.txt", "é" * sizes[number]) for number in expected]


def test_a_large_file_is_read_in_pieces_and_is_a_corpus_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"line {number} of a file that is too large\n" for number in range(60)]
    (tmp_path / "all.txt").write_text("".join(lines))
    monkeypatch.setattr(text, "_LARGEST", 100)
    parts = dict(text.read_documents(DataConfig(corpus=str(tmp_path))))
    assert len(parts) >= 10
    assert "".join(parts.values()) == "".join(lines[:60])
    corpus = prepare(DataConfig(corpus=str(tmp_path)), VOCABULARY)
    assert len(corpus.train) > len(corpus.val) > 0


def test_a_folder_that_is_too_small_is_named(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("alone")
    with pytest.raises(LabError, match="too few for a training and a validation part"):
        prepare(DataConfig(corpus=str(tmp_path)), VOCABULARY)


@pytest.mark.usefixtures("_fresh_cache")
@pytest.mark.parametrize(
    ("written", "ends"),
    [
        ("SPEAKER {}:\nA line of verse, and another of it.\n\n", "\n\n"),  # as tiny Shakespeare's
        ("One line without an end, the word {} of it. ", ""),
    ],
)
def test_one_text_file_is_split_so_that_a_part_can_be_held_out(written: str, ends: str, tmp_path: Path) -> None:
    whole = "".join(written.format(i) for i in range(1000))
    (tmp_path / "play.txt").write_text(whole)
    data = DataConfig(corpus=str(tmp_path / "play.txt"))
    actual = dict(read_documents(data))
    assert "".join(actual.values()) == whole
    assert 30 <= len(actual) <= 66
    assert all(text.endswith(ends) for text in actual.values())
    corpus = prepare(data, VOCABULARY)
    assert 0.01 < len(corpus.val) / corpus.tokens < 0.3
