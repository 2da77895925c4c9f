"""Write the tables of docs/optimizers.md from a stored run of `benchmarks/optimizers.py`.

python benchmarks/optimizers.py --threads 2 --rounds 21 --out docs/data/optimizers.json
python benchmarks/optimizers_page.py
"""

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
STORED, PAGE = DOCS / "data" / "optimizers.json", DOCS / "optimizers.md"
BEGIN, END = "<!-- measured -->\n", "<!-- end of measured -->"

MUONS = {
    "d64": "4 layers, d = 64",
    "d128": "6 layers, d = 128",
    "d256": "6 layers, d = 256",
    "d768": "2 layers, d = 768",
}
SHAPES = {name + split: MUONS[name] + words for name in MUONS for split, words in (("", ""), ("-split", ", split"))}
ELEMENTWISE = {
    "lion-d64": ("`Lion`, 4 layers d = 64", "lion-pytorch, foreach", "autowarm"),
    "lion-d768": ("`Lion`, 2 layers d = 768", "lion-pytorch, foreach", "autowarm"),
    "sgd-d64": ("`NormSGD`, 4 layers d = 64", "torch.optim.SGD, foreach", "autowarm NormSGD"),
    "sgd-d768": ("`NormSGD`, 2 layers d = 768", "torch.optim.SGD, foreach", "autowarm NormSGD"),
}
SPECTRA = {"flat": "Gaussian", "falling": "falling as 1/i"}


def tables(stored: dict[str, Any]) -> str:
    """The three tables: Muon's time, its singular values, the elementwise optimizers."""
    found = {result["workload"]: result for result in stored["results"]}
    return "\n\n".join(
        "\n".join(lines) for lines in (_muons(found), _singular_values(found), _elementwise(found))
    )  # fmt: skip


def _muons(found: dict[str, Any]) -> list[str]:
    peers = ["timm", "pytorch-optimizer", "heavyball, eager"]
    lines = [
        "| shapes | torch.optim.Muon | ours | × faster | with `steps=5` | ours / its products | peak / largest stack | "
        "timm | pytorch-optimizer | HeavyBall |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, words in SHAPES.items():
        of, stack = found[name]["contenders"], found[name]["largest_stack_bytes"]
        ours = of["autowarm"]
        cells = [
            words,
            _ms(of["torch.optim.Muon"]),
            _ms(ours),
            f"**{ours['times_faster']:.2f}**",
            f"{of['autowarm, 5 steps']['times_faster']:.2f}",
            f"{ours['ms'] / ours['products_ms']:.2f}",
            f"{ours['peak_bytes'] / stack:.1f}",
            *(_ms(of[peer]) for peer in peers),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _singular_values(found: dict[str, Any]) -> list[str]:
    columns = ["torch.optim.Muon", "autowarm", "autowarm, 5 steps", "timm"]
    lines = ["| | gradient | torch.optim.Muon | ours | ours, `steps=5` | timm |", "|---|---|---|---|---|---|"]
    for name in MUONS:
        for spectrum, words in SPECTRA.items():
            values = [found[name]["contenders"][column]["singular_values"][spectrum] for column in columns]
            cells = [f"{v['low']:.2f}–{v['high']:.2f} ± {v['rms_error']:.2f}" for v in values]
            lines.append(f"| d = {name[1:]} | {words} | {' | '.join(cells)} |")
    return lines


def _elementwise(found: dict[str, Any]) -> list[str]:
    lines = ["| elementwise | base line | | ours is faster by |", "|---|---|---|---|"]
    for name, (words, base, ours) in ELEMENTWISE.items():
        of = found[name]["contenders"]
        lines.append(f"| {words} | {base} | {_ms(of[base])} | {of[ours]['times_faster']:.2f} |")
    return lines


def _ms(contender: dict[str, Any]) -> str:
    return f"{contender['ms']:.3g} ms" if "ms" in contender else "–"


def main() -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    PAGE.write_text(before + BEGIN + tables(stored) + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
