"""Write the tables of docs/optimizers.md from what `benchmarks/gpu.py` measured: python benchmarks/gpu_page.py."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
STORED, PAGE = DOCS / "data" / "gpu.json", DOCS / "optimizers.md"
BEGIN, END = "<!-- measured on a GPU -->\n", "<!-- end of measured -->"
NOT_YET = "**Not yet measured.** No GPU was at hand so far."


def tables(stored: dict[str, Any] | None) -> str:
    """All that was measured, a section for each part; what is missing is said to be."""
    if stored is None:
        return NOT_YET
    lines = ["On " + ", ".join(f"{what} {value}" for what, value in reversed(stored["environment"].items())) + "."]
    for name, (title, columns, rows) in SECTIONS.items():
        part = stored["parts"].get(name, {"finished": False, "results": {}})
        lines += ["", f"### {title}", ""]
        if part["results"]:
            lines += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
            lines += [f"| {' | '.join(row)} |" for row in rows(part["results"])]
        if not part["finished"]:
            lines += ["", f"Not finished: {part.get('failed', 'not yet measured')}."]
    return "\n".join(lines)


Rows = Callable[[dict[str, Any]], list[list[str]]]


def _tests(results: dict[str, Any]) -> list[list[str]]:
    return [
        [name.removeprefix("test_").replace("_", " "), *(str(of[key]) for key in ("passed", "failed", "skipped"))]
        for name, of in results.items()
    ]


def _steps(results: dict[str, Any]) -> list[list[str]]:
    rows = []
    for label, of in results.items():
        base = results.get(f"{label.split()[0]} torch.optim.Muon", {}).get("ms")
        if "missing" in of:
            rows.append([label, f"– ({of['missing']})", *[""] * 4])
            continue
        peak = of["peak_bytes"]
        rows.append(
            [label, _number(of["ms"]), _number(base and base / of["ms"]), _number(of["host_ms"]),
             _number(of["launches"]), _number(peak and peak / 1e9)]
        )  # fmt: skip
    return rows


def _symmetric(results: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, of in results.items():
        times = of.get("ms", {})
        own = times.get("128×64×8×3")
        best = min(times, key=times.__getitem__, default=None)
        faster = own and of["bmm_ms"] / own
        fastest = f"{best} ({times[best]:.3g} ms)" if best else "–"
        rows.append([f"{of['count']} × {name}", _number(of.get("bmm_ms")), _number(own), _number(faster), fastest,
                     f"{of['error']:.1e}", "yes" if of["symmetric"] else "**no**"])  # fmt: skip
    return rows


def _llama(results: dict[str, Any]) -> list[list[str]]:
    return [
        [label, f"{of['tokens_per_second']:,.0f}", _number(of["mfu"] and 100 * of["mfu"]), _number(of["step_ms"]),
         _number(of["peak_bytes"] and of["peak_bytes"] / 1e9)]
        for label, of in results.items()
    ]  # fmt: skip


def _compare(results: dict[str, Any]) -> list[list[str]]:
    return [
        [name, str(results["steps"]), _number(of["warmup_steps"]), _number(of["val_loss"], 4),
         _number(of["train_loss"], 4), of["ended_by"] or "–"]
        for name, of in results.items() if name != "steps"
    ]  # fmt: skip


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else str(value) if isinstance(value, int) else f"{value:.{digits}g}"


SECTIONS: dict[str, tuple[str, list[str], Rows]] = {
    "tests": ("The tests on the GPU", ["test", "passed", "failed", "skipped"], _tests),
    "steps": (
        "One step", ["step", "ms", "× faster", "of these the host's", "launches", "temporaries, GB"], _steps,
    ),
    "symmetric": (
        "Symmetric products",
        ["product", "cuBLAS, ms", "kernel, ms", "× faster", "quickest tile", "relative error", "symmetric"], _symmetric,
    ),
    "llama": ("LLaMA-124M with Muon", ["model", "tokens a second", "MFU, %", "ms a step", "peak, GB"], _llama),
    "compare": (
        "The 124M comparison", ["run", "steps", "warm-up", "validation loss", "training loss", "ended by"], _compare,
    ),
}  # fmt: skip


def main() -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else None
    PAGE.write_text(before + BEGIN + tables(stored) + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
