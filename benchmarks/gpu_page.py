"""Write the tables of docs/optimizers.md from what `benchmarks/gpu.py` measured: python benchmarks/gpu_page.py."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autowarm.lab.analysis.markdown import comma_separated

DATA = Path(__file__).parents[1] / "docs" / "data"
STORED = DATA / "gpu.json"


def tables(stored: dict[str, Any]) -> dict[str, list[list[str]]]:
    """Each part's table by the name of its file, with a heading; an unfinished part says so in its last row."""
    by_file = {}
    for name, (columns, rows) in SECTIONS.items():
        part = stored["parts"].get(name, {"finished": False, "results": {}})
        by_file[f"gpu-{name}.csv"] = lines = [columns, *rows(part["results"])]
        if not part["finished"]:
            lines.append([f"not finished: {part.get('failed', 'not yet measured')}", *[""] * (len(columns) - 1)])
    return by_file


def _tests(results: dict[str, Any]) -> list[list[str]]:
    """All tests in one row, and a row for each of which some cases failed."""
    total = {key: sum(of[key] for of in results.values()) for key in ("passed", "failed", "skipped")}
    failed = {name.removeprefix("test_").replace("_", " "): of for name, of in results.items() if of["failed"]}
    return [[name, *(str(of[key]) for key in total)] for name, of in {"all": total, **failed}.items()]


def _steps(results: dict[str, Any]) -> list[list[str]]:
    rows = []
    for label, of in results.items():
        if "missing" in of:  # a peer that is not installed
            continue
        base, peak = results.get(f"{label.split()[0]} torch.optim.Muon", {}).get("ms"), of["peak_bytes"]
        numbers = of["ms"], base and base / of["ms"], of["host_ms"], of["launches"], peak and peak / 1e9
        rows.append([label, *map(_number, numbers)])
    return rows


def _llama(results: dict[str, Any]) -> list[list[str]]:
    return [
        [label, f"{of['tokens_per_second']:,.0f}", _number(of["mfu"] and 100 * of["mfu"]), _number(of["step_ms"]),
         _number(of["peak_bytes"] and of["peak_bytes"] / 1e9)]
        for label, of in results.items()
    ]  # fmt: skip


def _number(value: float | None) -> str:
    return "–" if value is None else str(value) if isinstance(value, int) else f"{value:.3g}"


SECTIONS: dict[str, tuple[list[str], Callable[[dict[str, Any]], list[list[str]]]]] = {
    "tests": (["test", "passed", "failed", "skipped"], _tests),
    "steps": (["step", "ms", "× faster", "of these the host's", "launches", "temporaries, GB"], _steps),
    "llama": (["LLaMA-124M", "tokens a second", "MFU, %", "ms a step", "peak, GB"], _llama),
}


def main() -> None:
    if STORED.exists():
        for name, (headings, *rows) in tables(json.loads(STORED.read_text(encoding="utf-8"))).items():
            (DATA / "tables" / name).write_text(comma_separated(headings, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
