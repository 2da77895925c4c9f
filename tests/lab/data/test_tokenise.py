import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autowarm.lab.commands import main
from autowarm.lab.config import DataConfig, LabError
from autowarm.lab.data import batch, prepare
from autowarm.lab.data.shards import check, open_shard
from autowarm.lab.data.text import END_OF_TEXT, read_documents
from autowarm.lab.data.tokenise import FINEWEB, SAMPLE, ShardsConfig, documents, load_encoder, make_shards

DOCUMENTS = 900


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    folder: Path = tmp_path_factory.mktemp("parquet")
    for part in range(3):
        texts = [f"document {part * 300 + i} says {'so ' * (i % 7)}" for i in range(300)]
        write_table(pa.table({"text": texts, "id": list(range(300))}), folder / f"{part}.parquet")
    return folder


def settings(out: Path, tokenizer: str, **changes: Any) -> ShardsConfig:
    return ShardsConfig(out=str(out), tokenizer=tokenizer, shard_tokens=6000, val_tokens=1000, workers=2, **changes)


def tokens_of(folder: Path) -> np.ndarray:
    listed = json.loads((folder / "manifest.json").read_text())["shards"]
    return np.concatenate([open_shard(folder / row["file"]) for row in listed])


def test_every_document_is_in_the_shards_once_and_in_order(parquet: Path, tokenizer: str, tmp_path: Path) -> None:
    manifest = make_shards(settings(tmp_path, tokenizer), "here", lambda: documents(parquet))
    encoder = load_encoder(tokenizer)
    expected = encoder([row["text"] for row in documents(parquet)])
    assert np.array_equal(tokens_of(tmp_path), expected)
    assert manifest["documents"] == DOCUMENTS
    assert manifest["tokens"] == len(expected)
    assert [row["part"] for row in manifest["shards"]][:2] == ["val", "train"]
    assert len(manifest["shards"]) > 2
    assert check(tmp_path) == len(manifest["shards"])
    corpus = prepare(DataConfig(corpus=str(tmp_path)), 270)
    assert corpus.tokens == manifest["tokens"]
    assert batch(corpus.train, 0, 0, 2, 16).shape == (2, 17)
    with pytest.raises(LabError, match=r"270 different tokens, model\.vocab_size is only 260"):
        prepare(DataConfig(corpus=str(tmp_path)), 260)


def test_fineweb_is_streamed_goes_on_after_a_cut_and_is_not_asked_for_again(
    parquet: Path, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of the hub's layout stands for it."""
    import datasets

    hub, asked, load = tmp_path / "hub", [], datasets.load_dataset

    def load_dataset(path: str, **given: Any) -> Any:
        asked.append((path, given["name"], given["split"]))
        return load("parquet", data_files=sorted(map(str, hub.iterdir())), **{**given, "name": "default"})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    shutil.copytree(parquet, hub)
    (hub / "2.parquet").write_bytes(b"PAR1 no more")
    out = tmp_path / "shards"
    words = ["data", "fineweb", "--tokenizer", tokenizer, "--out", str(out), "--val_tokens", "1000", "--shard_tokens",
             "4000", "--workers", "2"]  # fmt: skip
    assert main(words) == 1
    error = capsys.readouterr().err
    assert "the stream of documents broke off (" in error
    assert "Finished shards are kept: the same command continues from here" in error
    kept = json.loads((out / "manifest.json").read_text())
    assert 0 < kept["documents"] <= 600
    with pytest.raises(LabError, match="is not finished"):
        prepare(DataConfig(corpus=str(out)), 270)
    shutil.copy(parquet / "2.parquet", hub)
    assert [main(words), main(words)] == [0, 0]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["shards"][: len(kept["shards"])] == kept["shards"]
    assert (manifest["source"], manifest["documents"]) == (f"{FINEWEB} {SAMPLE}", DOCUMENTS)
    assert np.array_equal(tokens_of(out), load_encoder(tokenizer)([row["text"] for row in documents(parquet)]))
    assert asked == [(FINEWEB, SAMPLE, "train")] * 2


def test_a_budget_of_tokens_can_be_raised_later(parquet: Path, tokenizer: str, tmp_path: Path) -> None:
    small = make_shards(settings(tmp_path, tokenizer, tokens=3000), "here", lambda: documents(parquet))
    assert 3000 <= small["tokens"] < 20000
    assert small["documents"] < DOCUMENTS
    assert make_shards(settings(tmp_path, tokenizer), "here", lambda: documents(parquet))["documents"] == DOCUMENTS


def test_a_changed_folder_is_refused_when_it_goes_on(
    corpus_folder: Path, tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, out = tmp_path / "texts", tmp_path / "out"
    shutil.copytree(corpus_folder, texts)
    words = ["data", "folder", str(texts), "--tokenizer", tokenizer, "--out", str(out), "--val_tokens", "300"]
    assert main([*words, "--tokens", "3000"]) == 0
    (texts / "added.txt").write_text("says so")
    assert main(words) == 1
    assert re.search(r"holds other shards \(files: 30 of \d+ bytes, \w+ → 31 of ", capsys.readouterr().err)
    (texts / "added.txt").unlink()
    assert main(words) == 0
    (texts / "text0.txt").rename(texts / "text00.txt")
    assert main(words) == 1


def test_the_command_makes_checks_and_explains(
    corpus_folder: Path, tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data", "folder", str(corpus_folder), "--tokenizer", tokenizer, "--out", str(tmp_path / "shards")]
    assert main([*words, "--val_tokens", "1000000"]) == 1
    assert "lower --val_tokens" in capsys.readouterr().err
    assert main(["data", "check", str(tmp_path / "shards")]) == 1
    assert "is not finished" in capsys.readouterr().err
    words[-1] = str(tmp_path / "small")
    assert main([*words, "--val_tokens", "10"]) == 0
    assert main(["data", "check", str(tmp_path / "small")]) == 0
    assert main(["data", "check", str(tmp_path / "small"), "extra"]) == 2
    (tmp_path / "small" / "train_000001.bin").unlink()
    assert main([*words, "--val_tokens", "10"]) == 1
    assert "lacks train_000001.bin: delete the folder" in capsys.readouterr().err
    assert main(["data", "folder"]) == 2


def test_without_the_network_it_names_the_embedded_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import datasets
    import tiktoken

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(tiktoken, "get_encoding", unreachable)
    assert main(["data", "fineweb", "--out", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "TIKTOKEN_CACHE_DIR" in error
    assert "embedded corpus" in error
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    assert main(["data", "fineweb", "--out", str(tmp_path), "--tokenizer", tokenizer]) == 1
    error = capsys.readouterr().err
    assert "FineWeb cannot be reached" in error
    assert "embedded corpus" in error


def test_a_folder_is_read_whole_and_alike_by_all_its_readers(parquet: Path, tmp_path: Path) -> None:
    names = ["tests/a.txt", "encodings/b.md", "site-packages/c.py", "train/d.rst", "test/e.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(f"text of {name}")
    with_text = dict(read_documents(DataConfig(corpus=str(tmp_path))))
    assert with_text == {name: f"text of {name}" for name in names}
    shutil.copy(parquet / "0.parquet", tmp_path / "test")  # beside text
    texts = [text for _, text in read_documents(DataConfig(corpus=str(tmp_path)))]
    assert len(texts) == 305
    assert [row["text"] for row in documents(tmp_path)] == texts
    (tmp_path / "none").mkdir()
    for folder, message in (("none", r"none has no \.py, .* or \.parquet file"), ("nowhere", "no folder .*nowhere")):
        with pytest.raises(LabError, match=message):
            documents(tmp_path / folder)
        with pytest.raises(LabError, match=message):
            prepare(DataConfig(corpus=str(tmp_path / folder)), 300)


def test_null_texts_are_left_out_and_unusable_parquet_is_named(tokenizer: str, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    def write(name: str, **columns: list[Any]) -> Path:
        (tmp_path / name).mkdir()
        write_table(pa.table(columns), tmp_path / name / "a.parquet")
        return tmp_path / name

    texts = [f"document {number} says so" for number in range(200)]
    full, gaps = write("full", text=texts), write("gaps", text=[None, *texts[:9], None, *texts[9:], None])
    straight = make_shards(settings(tmp_path / "straight", tokenizer), "here", lambda: documents(full))
    made = make_shards(settings(tmp_path / "made", tokenizer), "here", lambda: documents(gaps))
    assert straight["shards"] == made["shards"]
    assert [text for _, text in read_documents(DataConfig(corpus=str(gaps)))] == texts
    assert prepare(DataConfig(corpus=str(gaps)), 300).tokens > 0

    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "a.parquet").write_bytes(b"PAR1 no more")
    write("none", body=["a text"], id=[1])
    write("numbers", text=[1])
    for name, message in (
        ("none", r"a\.parquet has no column 'text'; its columns are body \(string\), id \(int64\)$"),
        ("numbers", r"a\.parquet: the column 'text' holds no text; the columns are text \(int64\)$"),
        ("damaged", r"a\.parquet cannot be read: .*$"),
    ):
        folder = tmp_path / name
        with pytest.raises(LabError, match=f"^{folder}/{message}"):
            make_shards(settings(tmp_path / "out", tokenizer), "here", partial(documents, folder))
        with pytest.raises(LabError, match=f"^{folder}/{message}"):
            prepare(DataConfig(corpus=str(folder)), 300)


def test_a_special_token_in_a_document_is_text(tokenizer: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders

    document = f"it says {END_OF_TEXT} and goes on"
    encoder, reader = load_encoder(tokenizer), Tokenizer.from_file(tokenizer)
    reader.decoder = decoders.ByteLevel()
    first, *rest = encoder([document]).tolist()
    assert (first, encoder.end in rest, reader.decode(rest)) == (encoder.end, False, document)
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text(document)
    corpus = prepare(DataConfig(corpus=str(tmp_path)), 300)
    ends = [int((part == 0).sum()) for part in (corpus.train, corpus.val)]
    assert min(ends) > 0
    assert sum(ends) == 30


def test_truncation_and_padding_of_the_tokenizers_file_are_ignored(tokenizer: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    cutting = Tokenizer.from_file(tokenizer)
    cutting.enable_truncation(8)
    cutting.enable_padding(length=64)
    cutting.save(str(tmp_path / "cutting.json"))
    texts = ["document says so " * 20, "so"]
    assert np.array_equal(load_encoder(str(tmp_path / "cutting.json"))(texts), load_encoder(tokenizer)(texts))


def test_the_validation_part_is_as_small_as_asked(tokenizer: str, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(40):
        (texts / f"{i:02d}.txt").write_text(f"text {i} " + "says so " * 100)
    config = ShardsConfig(out=str(tmp_path / "out"), tokenizer=tokenizer, val_tokens=2000)
    first, second = make_shards(config, "here", lambda: documents(texts))["shards"]
    assert 2000 <= first["tokens"] < 4000
    assert first["documents"] + second["documents"] == 40
