"""`autowarm data fineweb`, whole, against a hub on this machine that is laid out as FineWeb is."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest

from autowarm.lab.data.shards import check, open_shard
from autowarm.lab.data.tokenise import FINEWEB, SAMPLE, load_encoder

from ..helpers import PATIENCE

REVISION = "0123456789abcdef" * 2 + "01234567"
FILES, ROWS = 5, 300
TEXTS = [f"document {i} says {'so ' * (i % 7)}– déjà vu" for i in range(FILES * ROWS)]
CARD = f"""---
configs:
- config_name: default
  data_files: [{{split: train, path: data/*/*}}]
- config_name: {SAMPLE}
  data_files: [{{split: train, path: sample/10BT/*}}]
---
"""


def parquet(texts: list[str]) -> bytes:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    file = io.BytesIO()
    table = pa.table({"text": texts, "id": [str(i) for i in range(len(texts))], "token_count": [9] * len(texts)})
    write_table(table, file, row_group_size=100)
    return file.getvalue()


def sample(index: int) -> str:
    return f"sample/10BT/{index:03d}_00000.parquet"


class Hub(ThreadingHTTPServer):
    """As much of the Hugging Face hub's API as reading one public dataset takes.

    Attributes:
        files: the dataset's.
        refused: files that are answered with 403, as one whose signed address has run out.
        dropped: files whose next answer breaks off half-way, once each.
        read: the files that were asked for, in order.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        parts = (TEXTS[start : start + ROWS] for start in range(0, len(TEXTS), ROWS))
        self.files = {"README.md": CARD.encode(), "data/CC-MAIN-2013-20/000_00000.parquet": parquet(["not of it"])}
        self.files |= {sample(index): parquet(texts) for index, texts in enumerate(parts)}
        self.refused: set[str] = set()
        self.dropped: set[str] = set()
        self.read: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def tree(self, folder: str, recursive: bool) -> list[dict[str, object]]:
        """What a folder of the dataset holds."""
        found: dict[str, dict[str, object]] = {}
        for path, data in self.files.items():
            names = path.split("/")
            for depth in range(1, len(names)):
                above = "/".join(names[:depth])
                found[above] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": above}
            found[path] = {"type": "file", "oid": "0" * 40, "size": len(data), "path": path}
        inside = [row for path, row in found.items() if path.startswith(folder)]
        return [row for row in inside if recursive or "/" not in str(row["path"])[len(folder) :]]


class Answer(BaseHTTPRequestHandler):
    """One request to the hub; whatever else `datasets` asks for is not there."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        path = unquote(address.path)
        if re.fullmatch(rf"/api/datasets/{FINEWEB}(/revision/\w+)?", path):
            listed = [{"rfilename": name} for name in self.server.files]
            self.say_json({"id": FINEWEB, "sha": REVISION, "private": False, "tags": [], "siblings": listed})
        elif match := re.fullmatch(rf"/api/datasets/{FINEWEB}/tree/\w+(?:/(.+))?", path):
            recursive = parse_qs(address.query).get("recursive") == ["true"]
            self.say_json(self.server.tree(f"{match[1]}/" if match[1] else "", recursive))
        elif match := re.fullmatch(rf"/datasets/{FINEWEB}/resolve/\w+/(.+)", path):
            self.say_file(match[1])
        else:
            self.say(404)

    do_HEAD = do_GET

    def say_file(self, name: str) -> None:
        if name not in self.server.files:
            return self.say(404, {"X-Error-Code": "EntryNotFound"})
        if name in self.server.refused:
            return self.say(403)
        if self.command == "GET":
            self.server.read.append(name)
        data = self.server.files[name]
        about = {"ETag": f'"{name}"', "X-Repo-Commit": REVISION, "Accept-Ranges": "bytes"}
        if (asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))) is None:
            return self.say(200, about, data)
        first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
        about["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        part = data[first : last + 1]
        if name not in self.server.dropped:
            return self.say(206, about, part)
        self.server.dropped.remove(name)
        self.close_connection = True
        self.say(206, about, part[: len(part) // 2], length=len(part))

    def say_json(self, value: object) -> None:
        self.say(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def say(
        self, status: int, headers: dict[str, str] | None = None, body: bytes = b"", length: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(length or len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def data_fineweb(hub: Hub, home: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """The command, in a process of its own: the hub's address is read when its client is imported."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    own = {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-m", "autowarm", "data", "fineweb", *words]
    return subprocess.run(command, env=kept | own, cwd=home, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.long
def test_the_hubs_documents_become_shards_and_go_on_after_a_cut(hub: Hub, tokenizer: str, tmp_path: Path) -> None:
    out = tmp_path / "shards"
    words = ["--out", str(out), "--tokenizer", tokenizer, "--val_tokens", "4000", "--shard_tokens", "12000"]
    words += ["--workers", "2"]

    hub.refused = {sample(3)}
    cut = data_fineweb(hub, tmp_path, *words)
    assert cut.returncode == 1, cut.stderr
    assert "broke off" in cut.stderr
    assert "the same command continues from here" in cut.stderr
    kept = json.loads((out / "manifest.json").read_text())
    assert not kept["complete"]
    assert 0 < kept["documents"] <= 3 * ROWS
    finished = {row["file"]: (out / row["file"]).stat().st_mtime_ns for row in kept["shards"]}

    hub.refused, hub.dropped, hub.read = set(), {sample(4)}, []
    done = data_fineweb(hub, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert not hub.dropped
    assert hub.read.count(sample(4)) > 1  # the half answer was asked for again
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["complete"]
    assert manifest["source"] == f"{FINEWEB} {SAMPLE}"
    assert manifest["documents"] == len(TEXTS)
    assert manifest["shards"][: len(finished)] == kept["shards"]
    assert {name: (out / name).stat().st_mtime_ns for name in finished} == finished
    made = np.concatenate([open_shard(out / row["file"]) for row in manifest["shards"]])
    assert np.array_equal(made, load_encoder(tokenizer)(TEXTS))
    assert check(out) == len(manifest["shards"])

    hub.read = []
    again = data_fineweb(hub, tmp_path, *words)
    assert again.returncode == 0, again.stderr
    assert hub.read == []  # what is complete is not asked for again
