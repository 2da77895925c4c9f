"""Every example runs as a user would run it."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autowarm.lab.data.shards import open_shard, read_shards
from autowarm.lab.data.text import END_OF_TEXT, learnt_tokenizer
from autowarm.lab.execution import pool
from tests.programs import Launcher

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {"smoothness": "K2", "calibrate": "46,848     0.146   7.68   2.47"}
SHORTER = {"smoothness": ["300"]} | {f"own_task_{name}": ["10"] for name in ("nanogpt", "finetune", "first_loop")}
ON_RANKS = EXAMPLES / "fsdp2.py"
COMPARISONS = sorted(EXAMPLES.glob("own_task_*.py"))  # on worker processes
SHARDS = EXAMPLES / "make_shards.py"
ALONE = sorted({*EXAMPLES.glob("*.py")} - {ON_RANKS, SHARDS, *COMPARISONS})


@pytest.mark.parametrize("example", ALONE, ids=lambda path: path.stem)
def test_it_runs(example: Path, trainer_launcher: Launcher) -> None:
    ended = trainer_launcher.run([example, *SHORTER.get(example.stem, [])])
    assert ended.status == 0, ended.stderr
    assert SAYS.get(example.stem, "warm-up took") in ended.stderr  # stdout goes there as well


def test_shards_of_a_small_text_are_a_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import PreTrainedTokenizerFast

    texts = [f"document {index} says {'so ' * (index % 7)}" for index in range(60)]
    learnt = learnt_tokenizer(texts, 270)._tokenizer
    PreTrainedTokenizerFast(tokenizer_object=learnt, eos_token=END_OF_TEXT).save_pretrained(tmp_path / "tokenizer")
    for index, text in enumerate(texts):
        (tmp_path / f"{index:02d}.txt").write_text(text)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    words = [SHARDS, "--files", tmp_path / "*.txt", "--out", tmp_path / "out", "--tokenizer", tmp_path / "tokenizer",
             "--val-tokens", "100", "--shard-tokens", "200"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    runpy.run_path(str(SHARDS), run_name="__main__")
    assert "--model.vocab_size 384" in capsys.readouterr().out
    corpus = read_shards(tmp_path / "out", 384)
    assert len(list((tmp_path / "out").glob("train_*.bin"))) > 1
    tokens = [*open_shard(tmp_path / "out" / "val_000000.bin").tolist()]
    tokens += corpus.train.windows(np.array([0]), len(corpus.train))[0].tolist()
    end = learnt.token_to_id(END_OF_TEXT)
    assert tokens == [token for text in texts for token in (end, *learnt.encode(text).ids)]
    with pytest.raises(SystemExit):  # the shards are not written over
        runpy.run_path(str(SHARDS), run_name="__main__")
    assert "holds shards: give another --out" in capsys.readouterr().err


@pytest.mark.long
def test_it_runs_under_torchrun(tmp_path: Path) -> None:
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run([*launch, str(ON_RANKS)], capture_output=True, text=True, timeout=1200,
                          cwd=tmp_path, env=environment)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "warm-up took" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("example", COMPARISONS, ids=lambda path: path.stem)
def test_a_comparison_on_a_task_of_ones_own(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here: what a process of its own would import takes longer than what it does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(pool, "room", lambda: 1)  # as many workers are started, which takes longer than their work
    monkeypatch.setattr(sys, "argv", [str(example), *SHORTER[example.stem]])
    runpy.run_path(str(example), run_name="__main__")
    said = capsys.readouterr().out.split()
    assert " ".join(said).count("Best hand-set warm-up: ") == 2  # a verdict for each optimizer
    assert (tmp_path / said[-1]).name == "report.html"
    assert (tmp_path / said[-1]).is_file()
