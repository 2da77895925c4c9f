"""Random faults in the source, and which test notices each: what a change of the tests is held against.

``python benchmarks/mutants.py --seed 0 --count 40 src/autowarm/rate src/autowarm/losses.py -- tests/rate``

In a copy of the tree, one place of the sources at a time is mutated: a comparison, operator, number or truth value, a
negated condition, a deleted statement, two swapped arguments. pytest runs ``-x`` and what follows ``--``, which has to
pass without a mutant, in a fork of a process that has imported ``--preload``. Rows of CSV: file, line, before, after,
killed by which test; taking too long counts as killed. ``--contexts FILE``, which ``COVERAGE_FILE=FILE pytest --cov=src
--cov-context=test PATHS`` (pytest-cov) writes, leaves the tests that reach the line, the smallest first.
"""

import argparse
import ast
import collections
import copy
import csv
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAIRS = "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, Add Sub, Mult Div, And Or"
OPPOSITE = {one: getattr(ast, other) for pair in PAIRS.split(", ") for one, other in (pair.split(), pair.split()[::-1])}


def mutated(node: Any) -> Any:
    """What a node becomes, or None."""
    new = copy.copy(node)
    match node:
        case ast.Compare() if (op := type(node.ops[0]).__name__) in OPPOSITE:
            new.ops = [OPPOSITE[op](), *node.ops[1:]]
        case ast.BinOp() | ast.BoolOp() if (op := type(node.op).__name__) in OPPOSITE:
            new.op = OPPOSITE[op]()
        case ast.Constant(value=bool() | int() | float()):
            new.value = not node.value if isinstance(node.value, bool) else node.value + 1
        case ast.Call(args=[first, second, *rest]) if not isinstance(first, ast.Starred):
            new.args = [second, first, *rest]
        case ast.If() | ast.While() | ast.IfExp():
            new = ast.UnaryOp(ast.Not(), node.test)
        case ast.Return() if node.value and not isinstance(node.value, ast.Constant):
            new = ast.Return(ast.Constant(None))
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Assign(targets=[ast.Attribute()]):
            new = ast.Pass()
        case _:
            new = None
    return new


def mutants(path: Path) -> Iterator[tuple[Path, Any, str]]:
    """Each place of a file, and what is to stand there."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    unplaced = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if node not in unplaced and (new := mutated(node)) is not None:
            place, text = getattr(node, "test", node), ast.unparse(ast.fix_missing_locations(new))
            yield path, place, f"({text})" if isinstance(place, ast.expr) else text


def killer(words: list[str], seconds: int) -> str:
    """Which test fails first, in a child of this process; empty if all pass."""
    with tempfile.TemporaryFile("w+") as said:
        if not (child := os.fork()):
            os.setsid()
            os.dup2(said.fileno(), 1)
            signal.alarm(seconds)
            os._exit(pytest.main(["-x", "-q", "-rfE", "-p", "no:cacheprovider", *words]))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        subprocess.run(["pkill", "-KILL", "-s", str(child)])  # what it has started
        said.seek(0)
        failed = [line.partition(" ")[2].partition(" - ")[0] for line in said if line.startswith(("FAILED ", "ERROR "))]
        return failed[0].strip() if failed else "" if status in (0, 5) else f"pytest's status {status}"


def reached(contexts: str) -> dict[str, dict[int, list[str]]]:
    """By file and line the tests that reach it; those of the whole file, if it runs at import."""
    data = __import__("coverage").CoverageData(contexts)
    data.read()
    found = {file: data.contexts_by_lineno(file) for file in data.measured_files()}
    sizes = collections.Counter(test for lines in found.values() for tests in lines.values() for test in tests)
    for lines in found.values():
        order = sorted({test for tests in lines.values() for test in tests}, key=lambda test: (sizes[test], test))
        for line, tests in lines.items():
            lines[line] = [test for test in order if test in tests or "" in tests]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"seed": 0, "count": 40, "seconds": 120, "contexts": "", "preload": "torch"}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("sources", nargs="+", type=Path)
    cut = sys.argv.index("--")
    asked, tests = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]
    files = [file for one in asked.sources for file in (sorted(one.rglob("*.py")) if one.is_dir() else [one])]
    drawn = [one for file in files for one in mutants(file)]
    drawn = random.Random(asked.seed).sample(drawn, min(asked.count, len(drawn)))
    with tempfile.TemporaryDirectory() as tree:
        listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT)
        subprocess.run(["xargs", "-0", "cp", "-p", "--parents", "-t", tree], input=listed, cwd=ROOT, check=True)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = sys.path[0] = f"{tree}/src"  # before the editable install's
        [__import__(name) for name in asked.preload.split(",")]
        of_file = reached(asked.contexts) if asked.contexts else {}
        table = csv.writer(os.fdopen(os.dup(1), "w", 1))
        for number, (path, node, after) in enumerate(sorted(drawn, key=lambda one: (one[0], one[1].lineno))):
            text = path.read_bytes()
            lines = text.splitlines(keepends=True)
            first = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
            last = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
            path.write_bytes(text[:first] + after.encode() + text[last:])
            os.utime(path, (number, number))  # no two of a file's texts share their bytecode
            reach = of_file.get(str(ROOT / path), {})
            names = next((reach[n] for n in range(node.lineno, 0, -1) if n in reach), [])
            words = list(dict.fromkeys(name.rpartition("|")[0] for name in names if name)) if of_file else tests
            found = killer(words, asked.seconds) if words else ""
            table.writerow([path, node.lineno, text[first:last].decode(), after, found])
            path.write_bytes(text)


if __name__ == "__main__":
    main()
