"""Measures how many planted faults a suite of tests catches: `python tests/planted_faults.py --seed 29 --faults 20`.

Clones the project into a temporary folder, changes one random line in each of several random modules of app, worker and
training, one at a time, and runs the suite there until its first failure. Results are appended to a file, so that an interrupted
measurement continues with the same command. Judge each fault that was not caught: it may not change any behavior.
"""

import argparse
import ast
import itertools
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("app", "worker", "training")
SUITE = f'{sys.executable} -m pytest -n 3 --dist each --max-worker-restart 0 -m "not nightly"'
RESULTS = ROOT / ".pytest_cache" / "planted_faults.jsonl"
INTERRUPTED, NOTHING_COLLECTED = 2, 5  # exit codes of pytest
UNCHANGED = 0  # the number of the run without a fault

COMPARISONS = {
    "<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",),
    "is": ("is not",), "is not": ("is",), "in": ("not in",), "not in": ("in",),
}  # fmt: skip
COMPARISON = re.compile(r"<=|>=|==|!=|<|>|is\s+not|not\s+in|is|in")
TEXTS = {"help", "description", "title", "label", "info", "placeholder"}  # keyword arguments that are shown to people
LOGGERS = {"log", "logger", "logging", "warnings"}
CAUGHT_BY = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
WHERE = "import app, worker, training; print(*(module.__path__[0] for module in (app, worker, training)), sep='\\n')"


@dataclass(frozen=True)
class Fault:
    """A changed line."""

    number: int
    file: str
    line: int
    old: str
    new: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=29)
    parser.add_argument("--faults", type=int, default=20, help="how many; each is in another module")
    parser.add_argument("--commit", default="HEAD", help="default: the last one")
    parser.add_argument("--suite", default=SUITE, help="the command, which runs in the clone; default: %(default)s")
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: %(default)s")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="run this fault again, or 0, the unchanged commit")
    parser.add_argument("--list", action="store_true", help="print the faults and run nothing")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lathe-faults-", ignore_cleanup_errors=True) as folder:
        clone = cloned(Path(folder), asked.commit)
        faults = chosen(clone, asked.seed, asked.faults)
        if asked.list:
            print("\n".join(described(fault) for fault in faults))
            return
        check_imports(clone)
        measure(clone, faults, asked)


def measure(clone: Path, faults: list[Fault], asked: argparse.Namespace) -> None:
    """Runs the suite for each fault that has no result yet, and prints all results."""
    key = {"commit": git(clone, "rev-parse", "HEAD"), "seed": asked.seed, "suite": asked.suite}
    known = {} if asked.only is not None else results(asked.results, key)
    unchanged = Fault(UNCHANGED, "", 0, "", "")
    caught = []
    for fault in [unchanged, *faults]:
        if asked.only not in (None, fault.number):
            continue
        result = known.get(fault.number)
        if result is None or result | asdict(fault) != result:
            result = asdict(fault) | tried(clone, fault, asked.suite)
            append(asked.results, key | result)
        if fault is not unchanged:
            print(described(fault, f"{result['seconds']:>6.0f} s  {result['by'] or 'NOT CAUGHT'}"), flush=True)
            caught.append(bool(result["by"]))
        elif result["by"]:
            raise SystemExit(f"The suite fails without a fault ({result['by']}), so it says nothing about faults.")
    print(f"\n{sum(caught)} of {len(caught)} faults caught, seed {asked.seed}, commit {key['commit'][:12]}")


def described(fault: Fault, result: str = "") -> str:
    place = f"{fault.file}:{fault.line}"
    return f"{fault.number:>3} {place:<56}{result}\n    - {fault.old.strip()}\n    + {fault.new.strip()}"


def results(file: Path, key: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The results that the file has for this commit, seed and suite, by the number of the fault."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {row["number"]: row for row in map(json.loads, lines) if row | key == row}


def append(file: Path, result: dict[str, Any]) -> None:
    file.parent.mkdir(exist_ok=True, parents=True)
    with file.open("a") as stream:
        stream.write(json.dumps(result) + "\n")


# The clone


def cloned(folder: Path, commit: str) -> Path:
    """A clone of a commit. The environment and the data that tests look for beside the checkout are links to those here."""
    clone = folder / "lathe"
    commit = git(ROOT, "rev-parse", f"{commit}^{{commit}}")
    git(ROOT, "clone", "--quiet", "--no-checkout", str(ROOT), str(clone))
    git(clone, "checkout", "--quiet", "--detach", commit)
    for target, link in ((ROOT / ".venv", clone / ".venv"), (ROOT.parent / "shared", folder / "shared")):
        if target.is_dir():
            link.symlink_to(target)
    return clone


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def environment(clone: Path) -> dict[str, str]:
    """Makes Python find the packages in the clone before those of an editable installation; `-x` ends pytest at a failure."""
    path = os.pathsep.join(filter(None, [str(clone), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "PYTEST_ADDOPTS": f"{os.environ.get('PYTEST_ADDOPTS', '')} -x"}


def check_imports(clone: Path) -> None:
    """Exits unless Python, and a Python that it starts, import the packages of the clone."""
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WHERE!r}], check=True)"
    for program in (WHERE, child):
        argv = [sys.executable, "-c", program]
        done = subprocess.run(argv, cwd="/", env=environment(clone), check=True, stdout=subprocess.PIPE, text=True)
        if done.stdout.split("\n")[:-1] != [str(clone / package) for package in PACKAGES]:
            raise SystemExit(f"The packages are not imported from {clone}:\n{done.stdout}")


def tried(clone: Path, fault: Fault, suite: str) -> dict[str, Any]:
    """Plants the fault, runs the suite, and restores the file. `by` is the test that failed, or None if none did."""
    started = time.monotonic()
    file = clone / fault.file
    try:
        if fault.number != UNCHANGED:
            lines = file.read_text().split("\n")
            lines[fault.line - 1] = fault.new
            write(file, "\n".join(lines))
        near = f"{suite} {nearest_tests(clone, fault.file)}" if fault.number != UNCHANGED else ""
        code, output = run(near, clone) if near else (NOTHING_COLLECTED, "")
        if code in (0, NOTHING_COLLECTED):  # then the rest of the suite may catch it
            code, output = run(suite, clone)
    finally:
        if fault.number != UNCHANGED:
            git(clone, "checkout", "--quiet", "--", fault.file)
            forget_compiled(file)
    failed = CAUGHT_BY.findall(output)
    if code == NOTHING_COLLECTED or (code == INTERRUPTED and not failed):
        raise SystemExit(f"The suite ran no test or was interrupted:\n{output[-2000:]}")
    if fault.number == UNCHANGED and code:
        print(output[-4000:], file=sys.stderr)
    by = None if code == 0 else failed[0] if failed else f"exit code {code}"
    return {"by": by, "seconds": round(time.monotonic() - started, 1)}


def nearest_tests(clone: Path, module: str) -> str:
    """The deepest folder of tests that has the path of a module's folder. Its tests are run first, to find most faults sooner."""
    folder = (clone / "tests" / module).parent
    while not folder.is_dir():
        folder = folder.parent
    return str(folder.relative_to(clone))


def run(suite: str, clone: Path) -> tuple[int, str]:
    """Exit code and output of the suite's command."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        argv = shlex.split(suite)
        with subprocess.Popen(argv, cwd=clone, env=environment(clone), stdout=output, stderr=output) as process:
            try:
                process.wait()
            except KeyboardInterrupt:  # it has reached the suite too, which ends what it started
                process.wait()
                raise
        output.seek(0)
        return process.returncode, output.read()


def write(file: Path, text: str) -> None:
    file.write_text(text)
    forget_compiled(file)


def forget_compiled(file: Path) -> None:
    """Python would use the compiled module of a file that changed in the same second and kept its length."""
    Path(cache_from_source(str(file))).unlink(missing_ok=True)


# Choosing faults


def chosen(clone: Path, seed: int, count: int) -> list[Fault]:
    """Random faults, each in another module; the same ones for a seed and a commit."""
    draw = random.Random(seed)
    files = [file for file in git(clone, "ls-files", *PACKAGES).splitlines() if file.endswith(".py")]
    faults: list[Fault] = []
    for file in draw.sample(files, len(files)):
        if len(faults) == count:
            break
        source = (clone / file).read_text()
        changes = sorted(set(changes_of(source)))
        if changes:
            line = draw.choice(sorted({line for line, _ in changes}))
            new = draw.choice([text for number, text in changes if number == line])
            faults.append(Fault(len(faults) + 1, file, line, source.split("\n")[line - 1], new))
    return faults


def changes_of(source: str) -> Iterator[tuple[int, str]]:
    """Each changed line that is possible: its number and its new text. It is valid Python with another meaning."""
    tree = ast.parse(source)
    lines = source.split("\n")
    for node in code_nodes(tree):
        for line, start, end, text in replacements(node, lines):
            old = lines[line - 1].encode()
            new = (old[:start] + text.encode() + old[end:]).decode()
            if differs(tree, "\n".join([*lines[: line - 1], new, *lines[line:]])):
                yield line, new


def differs(tree: ast.AST, source: str) -> bool:
    try:
        return ast.dump(ast.parse(source)) != ast.dump(tree)
    except SyntaxError:
        return False


def code_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below that are no types, texts, decorators or log messages, nor run only if a module is the program."""
    if isinstance(node, ast.JoinedStr) or is_log(node) or is_main(node):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not (isinstance(child, ast.keyword) and child.arg in TEXTS):
                yield from code_nodes(child)


def is_log(node: ast.AST) -> bool:
    """True for a call such as `logger.info(...)`."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
            return name.lower().strip("_") in LOGGERS
    return False


def is_main(node: ast.AST) -> bool:
    """True for `if __name__ == "__main__"` and `if TYPE_CHECKING`."""
    return isinstance(node, ast.If) and ast.unparse(node.test).startswith(("__name__", "TYPE_CHECKING"))


Replacement = tuple[int, int, int, str]  # line, first and last column in bytes, new text


def replacements(node: ast.AST, lines: list[str]) -> Iterator[Replacement]:
    """The changes of this node that stay within one line."""
    match node:
        case ast.Compare(left=left, comparators=[right]):
            yield from of_operator(left, right, lines, COMPARISON, COMPARISONS)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            yield from of_operator(left, right, lines, re.compile("[+-]"), {"+": ("-",), "-": ("+",)})
        case ast.BoolOp(values=values):
            for left, right in itertools.pairwise(values):
                yield from of_operator(left, right, lines, re.compile("and|or"), {"and": ("or",), "or": ("and",)})
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            yield from of_node(node, str(round(value + 1, 9)), str(round(value - 1, 9)))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from of_node(node, text_of(operand, lines))
        case ast.Return(value=ast.expr()):
            yield from of_node(node, "return None")
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield from of_node(test, *negated(test, lines))
        case ast.comprehension(ifs=tests):
            for test in tests:
                yield from of_node(test, *negated(test, lines))


def of_operator(
    left: ast.expr, right: ast.expr, lines: list[str], pattern: re.Pattern[str], others: dict[str, tuple[str, ...]]
) -> Iterator[Replacement]:
    """The replacements of the operator between two operands."""
    if left.end_lineno != right.lineno or left.end_col_offset is None:
        return
    between = lines[right.lineno - 1].encode()[left.end_col_offset : right.col_offset].decode()
    if found := pattern.search(between):
        for other in others.get(" ".join(found[0].split()), ()):
            yield right.lineno, left.end_col_offset + found.start(), left.end_col_offset + found.end(), other


def of_node(node: ast.expr | ast.stmt, *texts: str) -> Iterator[Replacement]:
    if node.lineno == node.end_lineno and node.end_col_offset is not None:
        for text in filter(None, texts):
            yield node.lineno, node.col_offset, node.end_col_offset, text


def negated(test: ast.expr, lines: list[str]) -> Iterator[str]:
    """The opposite of a condition; none for `not ...`, which loses its `not` elsewhere."""
    if text := text_of(test, lines):
        match test:
            case ast.UnaryOp(op=ast.Not()):
                return
            case ast.BoolOp() | ast.NamedExpr() | ast.IfExp():
                yield f"not ({text})"
            case _:
                yield f"not {text}"


def text_of(node: ast.expr, lines: list[str]) -> str:
    """The source of a node on one line; empty if it spans several."""
    if node.lineno != node.end_lineno:
        return ""
    return lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode()


if __name__ == "__main__":
    main()
