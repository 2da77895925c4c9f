from pathlib import Path

import pytest

from ..helpers import PATIENCE
from .comparison import started


@pytest.fixture(scope="session")
def finished(corpus_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a comparison that two real workers made, and what the command said."""
    out = tmp_path_factory.mktemp("finished")
    with started(corpus_folder, out, "--workers", "2") as process:
        text, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, error
    assert error == ""
    return out, text
