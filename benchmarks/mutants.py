"""Which small breaks of the code the tests see.

benchmarks/mutants.tsv keeps breaks of one line each, drawn by seed over all folders of retexo/ and
partitioning/, with the test that saw each. A smaller suite has to see what the earlier one saw.

    python benchmarks/mutants.py --draw 100 --seed 0  # draw a new list instead
    python benchmarks/mutants.py --reach    # run the suite once: which test runs which line
    python benchmarks/mutants.py            # try each break; print what is seen then and now
    python benchmarks/mutants.py --only 3,17 --tests tests/unit/models/test_conv.py
    python benchmarks/mutants.py --write    # note in the list what was seen

Everything happens in a copy of the working tree below `--work`, made by the first of these commands
and kept: a run that was stopped goes on; a changed tree takes another folder. `--reach` runs the
suite on a copy in which every line of the list notes the test that runs it. A break is then tried
with those tests only: those of files that import its module first, short ones before long ones, and
as many as take `--seconds` without a break. `--full` tries those that are left over with all tests
that run the line. `--limit` ends a break's processes. A line is found again by its text, in its own
function first; breaks whose line is gone are told. Code outside functions is not broken, nor what
numba compiles.
"""

import argparse
import ast
import copy
import csv
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "benchmarks" / "mutants.tsv"
MARK = "MUTANTS_FOLDER"
"""The environment variable of all processes of a run: its folder."""
MASK = re.compile(r"mask|keep|valid|chosen|selected|known|is_")
WEIGHT = re.compile(r"weight|scale|degree|norm|mask|factor")


def both_ways(*pairs: tuple[Any, Any]) -> dict[Any, Any]:
    return {**dict(pairs), **{other: one for one, other in pairs}}


TURNED = both_ways(
    (ast.Lt, ast.GtE),
    (ast.Gt, ast.LtE),
    (ast.Eq, ast.NotEq),
    (ast.In, ast.NotIn),
    (ast.Is, ast.IsNot),
)
SHIFTED = both_ways((ast.Lt, ast.LtE), (ast.Gt, ast.GtE))
SIGN = both_ways((ast.Add, ast.Sub))
OTHER_NAME = both_ways(
    ("min", "max"),
    ("minimum", "maximum"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("any", "all"),
    ("floor", "ceil"),
    ("zeros", "ones"),
)
CONSTANTS = {"bool": "True", "int": "0", "float": "0.0", "str": '""', "list": "[]", "dict": "{}"}
REDUCTIONS = {"sum", "mean", "softmax", "log_softmax", "argmax", "cat", "stack", "concatenate"}


@dataclass(frozen=True)
class Mutant:
    """One line of the list. `line` and `function` are where the text is looked for first."""

    number: int
    file: str
    line: int
    function: str
    kind: str
    original: str
    broken: str
    seen_by: str = ""
    note: str = ""

    @property
    def room(self) -> str:
        return "/".join(self.file.split("/")[:-1][:2])


@dataclass(frozen=True)
class Break:
    """Text of one line from column `start` to `end`, and what takes its place."""

    line: int
    start: int
    end: int
    function: str
    kind: str
    text: str
    is_statement: bool


# --- finding breaks ----------


class Finder(ast.NodeVisitor):
    """All breaks within the functions of a module, those that numba compiles left out."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.returns: list[str] = []
        self.handlers = 0
        self.breaks: list[Break] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if any("jit" in ast.unparse(decorator) for decorator in node.decorator_list):
            return
        self.names.append(node.name)
        self.returns.append(ast.unparse(node.returns).split("[")[0] if node.returns else "")
        for statement in node.body:
            self.visit(statement)
        self.returns.pop()
        self.names.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.names.append(node.name)
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef):
                self.visit(statement)
        self.names.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_match_case(self, node: ast.match_case) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Text."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """Programming errors."""

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self.handlers += 1
        for statement in node.body:
            self.visit(statement)
        self.handlers -= 1

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            self.visit(node.args[0])
        else:
            self._offer_arguments(node)
            super().generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        kind = "exception swallowed" if self.handlers else "check left out"
        if node.lineno == node.end_lineno:
            self._offer(node, kind, "pass")
        elif not node.cause and self.names:  # the exception is made and not raised
            end = node.col_offset + len("raise ")
            self.breaks.append(
                Break(node.lineno, node.col_offset, end, self._function, kind, "", True)
            )

    def generic_visit(self, node: ast.AST) -> None:
        for kind, text in self._texts(node):
            self._offer(node, kind, text)
        super().generic_visit(node)

    @property
    def _function(self) -> str:
        return ".".join(self.names)

    def _offer(self, node: Any, kind: str, text: str) -> None:
        if self.returns and node.lineno == node.end_lineno:
            is_statement = isinstance(node, ast.stmt)
            span = (node.lineno, node.col_offset, node.end_col_offset)
            self.breaks.append(Break(*span, self._function, kind, text, is_statement))

    def _texts(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        match node:
            case ast.BinOp(op=ast.Add() | ast.Sub()) if not _is_sequence(node):
                yield "sign", _with(node, op=SIGN[type(node.op)]())
            case ast.BinOp(op=ast.Mult() | ast.Div()) if not _is_sequence(node):
                right = WEIGHT.search(ast.unparse(node.right))
                left = WEIGHT.search(ast.unparse(node.left))
                kept = node.right if left and not right else node.left
                if left or right:
                    yield "weight ignored", _operand(kept)
                elif isinstance(node.op, ast.Mult):  # a quotient may be a path
                    yield "factor ignored", _operand(kept)
            case ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
                yield "mask left out", _operand(node.left)
                yield "mask left out", _operand(node.right)
            case ast.UnaryOp(op=ast.USub()) if not isinstance(node.operand, ast.Constant):
                yield "sign", _operand(node.operand)
            case ast.UnaryOp(op=ast.Not() | ast.Invert()):
                yield "boolean negated", _operand(node.operand)
            case ast.AugAssign(op=ast.Add() | ast.Sub()) if not _is_sequence(node):
                yield "sign", _with(node, op=SIGN[type(node.op)]())
            case ast.Compare(ops=[op]):
                yield "comparison turned", _with(node, ops=[TURNED[type(op)]()])
                if type(op) in SHIFTED:
                    yield "off by one", _with(node, ops=[SHIFTED[type(op)]()])
            case ast.BoolOp():
                other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
                yield "and for or", f"({_with(node, op=other)})"
            case ast.Subscript(ctx=ast.Load()):
                if isinstance(node.slice, ast.Compare) or MASK.search(ast.unparse(node.slice)):
                    yield "mask left out", _operand(node.value)
            case ast.Constant(value=bool()):
                yield "boolean negated", str(not node.value)
            case ast.Constant(value=int(value)) if abs(value) < 1000:
                yield "off by one", str(value + 1)
            case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
                if self.returns and self.returns[-1] in CONSTANTS:
                    yield "returned constant", f"return {CONSTANTS[self.returns[-1]]}"
            case ast.Expr(value=ast.Call()) if "log" not in (called := ast.unparse(node)).lower():
                if not called.startswith("print"):
                    yield "call left out", "pass"
            case ast.Name(id="min" | "max" | "any" | "all"):
                yield "wrong function", OTHER_NAME[node.id]
            case ast.Attribute(ctx=ast.Load()) if (
                node.attr in OTHER_NAME and node.attr not in ("zeros", "ones")
            ) or ast.unparse(node) in ("np.zeros", "np.ones", "torch.zeros", "torch.ones"):
                yield "wrong function", _with(node, attr=OTHER_NAME[node.attr])

    def _offer_arguments(self, node: ast.Call) -> None:
        name = ast.unparse(node.func).split(".")[-1]
        axes = [word.value for word in node.keywords if word.arg in ("dim", "axis")]
        if name in REDUCTIONS and isinstance(node.func, ast.Attribute):
            axes += node.args[-1:]
        for axis in axes:
            text = ast.unparse(axis)
            if text in ("0", "1", "-1"):
                self._offer(axis, "wrong axis", "1" if text == "0" else "0")
        for word in node.keywords:
            if word.arg and WEIGHT.search(word.arg) and not isinstance(word.value, ast.Constant):
                self._offer(word.value, "weight ignored", "None")


def _is_sequence(node: Any) -> bool:
    """Whether an operand is seen to be text or a list."""
    parts = (node.value,) if isinstance(node, ast.AugAssign) else (node.left, node.right)
    kinds = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    return any(
        isinstance(part, kinds) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in parts
    )


def _with(node: ast.AST, **changes: Any) -> str:
    changed = copy.copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return ast.unparse(changed)


def _operand(node: ast.expr) -> str:
    simple = isinstance(node, ast.Name | ast.Call | ast.Attribute | ast.Subscript | ast.Constant)
    return ast.unparse(node) if simple else f"({ast.unparse(node)})"


def splice(line: str, start: int, end: int, text: str) -> str:
    """The line with other text from byte `start` to `end`, as ast counts columns."""
    encoded = line.encode()
    return (encoded[:start] + text.encode() + encoded[end:]).decode()


def find_breaks(source: str) -> list[Break]:
    finder = Finder()
    finder.visit(ast.parse(source))
    lines = source.splitlines()
    return [
        candidate
        for candidate in finder.breaks
        if splice(lines[candidate.line - 1], candidate.start, candidate.end, candidate.text)
        != lines[candidate.line - 1]
    ]


def product_files(root: Path) -> list[str]:
    """Relative paths of the modules that are broken."""
    files = [*root.glob("retexo/**/*.py"), *root.glob("partitioning/**/*.py")]
    return sorted(file.relative_to(root).as_posix() for file in files)


def draw(count: int, seed: int) -> list[Mutant]:
    """Mutants of all folders: two of each, the others in proportion to their functions.

    The kind is drawn before the place; one a function.
    """
    generator = random.Random(seed)
    rooms: dict[str, list[tuple[str, Break]]] = defaultdict(list)
    for file in product_files(ROOT):
        for candidate in find_breaks((ROOT / file).read_text()):
            rooms["/".join(file.split("/")[:-1][:2])].append((file, candidate))
    sizes = {
        room: len({(file, candidate.function) for file, candidate in places})
        for room, places in rooms.items()
    }
    left = count - 2 * len(rooms)
    exact = {room: left * size / sum(sizes.values()) for room, size in sizes.items()}
    quotas = {room: 2 + int(share) for room, share in exact.items()}
    by_remainder = sorted(exact, key=lambda room: int(exact[room]) - exact[room])
    for room in by_remainder[: count - sum(quotas.values())]:
        quotas[room] += 1
    mutants: list[Mutant] = []
    for room, places in sorted(rooms.items()):
        used: set[tuple[str, str]] = set()
        while len(used) < quotas[room]:
            free = [place for place in places if (place[0], place[1].function) not in used]
            kind = generator.choice(sorted({candidate.kind for _, candidate in free}))
            file, candidate = generator.choice([place for place in free if place[1].kind == kind])
            used.add((file, candidate.function))
            line = (ROOT / file).read_text().splitlines()[candidate.line - 1]
            broken = splice(line, candidate.start, candidate.end, candidate.text).strip()
            where = (file, candidate.line, candidate.function, kind)
            mutants.append(Mutant(len(mutants) + 1, *where, line.strip(), broken))
    return mutants


# --- the list ----------


def read_list() -> list[Mutant]:
    with LIST.open(newline="") as file:
        return [
            Mutant(**{**row, "number": int(row["number"]), "line": int(row["line"])})  # type: ignore[arg-type]
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]


def write_list(mutants: list[Mutant]) -> None:
    names = [field.name for field in fields(Mutant)]
    rows = [[str(asdict(mutant)[name]) for name in names] for mutant in mutants]
    LIST.write_text("".join("\t".join(row) + "\n" for row in [names, *rows]))


def functions_by_line(source: str) -> dict[int, str]:
    """Dotted names of the innermost functions."""
    names: dict[int, str] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{prefix}.{child.name}".lstrip(".")
                for line in range(child.lineno, (child.end_lineno or 0) + 1):
                    names[line] = name
            visit(child, name)

    visit(ast.parse(source), "")
    return names


def locate(mutant: Mutant, root: Path) -> tuple[str, int] | None:
    """File and line of the same text; None where the code no longer exists.

    It is looked for in the same function, in the same file, or in a function of that name
    elsewhere.
    """
    candidates = []
    for file in product_files(root):
        source = (root / file).read_text()
        lines = [
            number
            for number, line in enumerate(source.splitlines(), 1)
            if line.strip() == mutant.original
        ]
        if not lines:
            continue
        functions = functions_by_line(source)
        for line in lines:
            in_file = file == mutant.file
            in_function = functions.get(line, "").split(".")[-1] == mutant.function.split(".")[-1]
            if in_file or in_function:
                rank = (not (in_file and in_function), not in_file, abs(line - mutant.line))
                candidates.append((rank, file, line))
    return min(candidates)[1:] if candidates else None


# --- the copy and its tests ----------

PLUGIN = '''
"""Of benchmarks/mutants.py: notes which test runs the lines of mutants, and what tests came to."""
import json, os, time
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_process, _test, _noted = 0, "", set()

def hit(number):
    global _process, _test, _noted
    if os.getpid() != _process:  # a worker, which belongs to one test
        with open(FOLDER + "/current") as file:
            _process, _test, _noted = os.getpid(), file.read(), set()
    if number not in _noted:
        _noted.add(number)
        note({"mutant": number, "test": _test})

def note(record):
    text = json.dumps(record) + "\\n"
    file = os.open(FOLDER + "/notes", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(file, text.encode())
    os.close(file)

def begin(test):
    global _process, _test, _noted
    with open(FOLDER + "/current.new", "w") as file:
        file.write(test)
    os.replace(FOLDER + "/current.new", FOLDER + "/current")
    _process, _test, _noted = os.getpid(), test, set()

try:
    import pytest
except ImportError:
    pytest = None
if pytest is not None:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item, nextitem):
        begin(item.nodeid)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(fixturedef, request):
        """What a fixture of several tests runs belongs to all tests of the file."""
        before = _test
        if fixturedef.scope != "function" and before:
            begin(before.split("::")[0])
        try:
            return (yield)
        finally:
            if before != _test:
                begin(before)

    def pytest_runtest_logreport(report):
        if report.when == "call" or report.outcome != "passed":
            crash = getattr(report.longrepr, "reprcrash", None)
            text = str(crash.message if crash else report.longrepr or "")[-300:]
            note({"ended": report.nodeid, "outcome": report.outcome,
                  "seconds": round(report.duration, 2), "text": text})

    def pytest_collectreport(report):
        if report.failed:
            note({"ended": report.nodeid, "outcome": "failed", "seconds": 0.0,
                  "text": str(report.longrepr)[-300:]})

    def pytest_collection_modifyitems(config, items):
        path = FOLDER + "/ended"
        ended = set(open(path).read().splitlines()) if os.path.exists(path) else set()
        items[:] = [item for item in items if item.nodeid not in ended]
'''


def make_copy(work: Path) -> Path:
    """The working tree as a git repository of its own."""
    tree = work / "tree"
    if tree.exists():
        return tree
    tree.mkdir(parents=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file() and not (ROOT / name).is_symlink():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    (tree / "mutants_plugin.py").write_text(PLUGIN)
    for arguments in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *arguments], cwd=tree, check=True)
    return tree


def run_tests(
    work: Path, tree: Path, tests: list[str], limit: float, timeout: float, *more: str
) -> list[Any]:
    """Pytest's notes; all its processes have ended."""
    notes = work / "notes"
    notes.unlink(missing_ok=True)
    (work / "current").write_text("")
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        MARK: str(work),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    temporary = tempfile.mkdtemp(prefix="mt")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n0",
        "-p",
        "mutants_plugin",
        "-p",
        "no:cacheprovider",
    ]
    command += [f"--timeout={timeout:g}", f"--basetemp={temporary}/t", *more, *tests]
    with (work / "output").open("ab") as output:
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_processes(work)
            process.wait()
            shutil.rmtree(temporary, ignore_errors=True)
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [json.loads(line) for line in lines]


def end_processes(work: Path) -> None:
    """Kill every process whose environment names this folder, except this one."""
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == str(work):
                process.kill()
        except psutil.Error:
            continue


def reach(work: Path, mutants: list[Mutant], paths: list[str]) -> None:
    """Run the suite once where each mutant's line notes its test; work/reach.jsonl."""
    tree, marked = make_copy(work), work / "marked"
    if not marked.exists():
        shutil.copytree(tree, marked)
        mark_lines(marked, mutants)
    file = work / "reach.jsonl"
    earlier = read_jsonl(file)
    (work / "ended").write_text("\n".join(note["ended"] for note in earlier if "ended" in note))
    try:
        notes = run_tests(work, marked, paths, 7200, 90)
    finally:
        (work / "ended").unlink()
    with file.open("a") as output:
        output.writelines(json.dumps(note) + "\n" for note in notes)


def mark_lines(marked: Path, mutants: list[Mutant]) -> None:
    """Let each line of a mutant call `hit` with its number before it computes the broken part."""
    for mutant in mutants:
        place = locate(mutant, marked)
        if place is None:
            continue
        path, number = marked / place[0], place[1]
        lines = path.read_text().splitlines()
        candidate = next(
            candidate
            for candidate in find_breaks(path.read_text())
            if candidate.line == number
            and splice(lines[number - 1], candidate.start, candidate.end, candidate.text).strip()
            == mutant.broken
        )
        hit = f'__import__("mutants_plugin").hit({mutant.number})'
        text = lines[number - 1].encode()[candidate.start : candidate.end].decode()
        text = f"{hit}; {text}" if candidate.is_statement else f"({hit}, ({text}))[1]"
        lines[number - 1] = splice(lines[number - 1], candidate.start, candidate.end, text)
        path.write_text("\n".join(lines) + "\n")


def read_jsonl(file: Path) -> list[Any]:
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def choose_tests(work: Path, tree: Path) -> dict[int, list[tuple[str, float]]]:
    """By mutant the tests that run its line and passed, near and short ones first; with seconds."""
    notes = read_jsonl(work / "reach.jsonl")
    if not notes:
        sys.exit(f"{work}: run with --reach first, or name --tests")
    seconds = {n["ended"]: n["seconds"] for n in notes if n.get("outcome") == "passed"}
    reached: dict[int, set[str]] = defaultdict(set)
    for note in notes:
        if "mutant" in note:
            reached[note["mutant"]].add(note["test"])
    texts = {file: (tree / file).read_text() for file in {test.split("::")[0] for test in seconds}}
    chosen = {}
    for mutant in read_list():
        names = reached[mutant.number]
        tests = [test for test in seconds if test in names or test.split("::")[0] in names]
        module = mutant.file.removesuffix(".py").replace("/", ".")
        last = f"from {module.rpartition('.')[0]} import"
        near = {
            file
            for file, text in texts.items()
            if module in text or (last in text and module.rpartition(".")[2] in text)
        }
        tests.sort(key=lambda test: (test.split("::")[0] not in near, seconds[test]))
        chosen[mutant.number] = [(test, seconds[test]) for test in tests]
    return chosen


def try_mutant(
    work: Path, tree: Path, mutant: Mutant, tests: list[str], limit: float
) -> dict[str, Any]:
    """What the tests say of the copy with the mutant."""
    place = locate(mutant, tree)
    if place is None:
        return {"number": mutant.number, "outcome": "gone"}
    path = tree / place[0]
    source = path.read_text()
    lines = source.splitlines()
    indent = lines[place[1] - 1][: -len(lines[place[1] - 1].lstrip())]
    lines[place[1] - 1] = indent + mutant.broken
    started = time.monotonic()
    notes = []
    try:
        path.write_text("\n".join(lines) + "\n")
        if tests:
            notes = run_tests(work, tree, tests, limit, min(60, limit / 2), "-x")
    finally:
        path.write_text(source)
    took = time.monotonic() - started
    failed = [note for note in notes if note.get("outcome") == "failed"]
    outcome = "seen" if failed else "limit" if took > limit else "not seen"
    return {
        "number": mutant.number,
        "outcome": outcome if tests else "not run by any test",
        "seen_by": failed[0]["ended"] if failed else "",
        "text": failed[0]["text"] if failed else "",
        "seconds": round(took, 1),
        "tests": len([note for note in notes if "ended" in note]),
    }


def within(tests: list[tuple[str, float]], seconds: float) -> list[str]:
    """The first tests, at least one, that take so many seconds."""
    names: list[str] = []
    for test, duration in tests:
        seconds -= duration
        if names and seconds < 0:
            break
        names.append(test)
    return names


def report(mutants: list[Mutant], results: list[Any]) -> int:
    """Print the table; the number of mutants that were seen and are not now."""
    last = {result["number"]: result for result in results}
    lost = 0
    for mutant in mutants:
        result = last.get(mutant.number, {"outcome": "not tried"})
        now = result.get("seen_by") or result["outcome"]
        is_lost = bool(mutant.seen_by) and result["outcome"] not in ("seen", "gone", "not tried")
        lost += is_lost
        print(f"{'LOST ' if is_lost else ''}{mutant.number} {mutant.file}: {mutant.kind}")
        print(f"    {mutant.original}\n    {mutant.broken}")
        print(f"    then: {mutant.seen_by or '-'} {mutant.note}\n    now:  {now}")
    counts = Counter(
        last.get(mutant.number, {"outcome": "not tried"})["outcome"] for mutant in mutants
    )
    seconds = sum(result.get("seconds", 0) for result in results)
    print(f"{dict(counts)}; {seconds:.0f} s; seen then and not now: {lost}")
    return lost


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "retexo-mutants")
    parser.add_argument("--draw", type=int, metavar="COUNT", help="draw a new list")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reach", nargs="*", metavar="PATH", help="run the suite, or these paths")
    parser.add_argument("--only", default="", metavar="NUMBERS", help="try these again")
    parser.add_argument("--tests", nargs="+", help="with these tests, not those that --reach found")
    parser.add_argument("--seconds", type=float, default=40.0, help="of the tests of one mutant")
    parser.add_argument("--limit", type=float, default=120.0, help="of one mutant, in seconds")
    parser.add_argument(
        "--full", action="store_true", help="try all that were not seen with all tests"
    )
    parser.add_argument("--report", action="store_true", help="print what was seen so far")
    parser.add_argument("--write", action="store_true", help="note what was seen in the list")
    arguments = parser.parse_args()
    if arguments.draw:
        write_list(draw(arguments.draw, arguments.seed))
        return 0
    work, mutants = arguments.work.resolve(), read_list()
    file = work / "results.jsonl"
    if arguments.reach is not None:
        reach(work, mutants, arguments.reach or ["tests"])
        return 0
    if not arguments.report and not arguments.write:
        try_all(work, mutants, arguments)
    results = read_jsonl(file)
    if arguments.write:
        last = {result["number"]: result for result in results}
        write_list(
            [replace(m, seen_by=last.get(m.number, {}).get("seen_by", m.seen_by)) for m in mutants]
        )
    return int(report(mutants, results) > 0)


def try_all(work: Path, mutants: list[Mutant], arguments: argparse.Namespace) -> None:
    tree, file = make_copy(work), work / "results.jsonl"
    chosen = {} if arguments.tests else choose_tests(work, tree)
    only = {int(number) for number in arguments.only.split(",") if number}
    for mutant in mutants:
        before = [result for result in read_jsonl(file) if result["number"] == mutant.number]
        is_left_over = before and not before[-1].get("seen_by") and before[-1]["outcome"] != "gone"
        if only and mutant.number not in only:
            continue
        if not only and before and not (arguments.full and is_left_over):
            continue
        seconds = 1e9 if arguments.full else arguments.seconds
        tests = arguments.tests or within(chosen[mutant.number], seconds)
        limit = 10 * arguments.limit if arguments.full else arguments.limit
        result = try_mutant(work, tree, mutant, tests, limit)
        with file.open("a") as output:
            output.write(json.dumps(result) + "\n")
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    sys.exit(main())
