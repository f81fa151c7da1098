"""scripts/count_statements.py: what it counts, and that every Python file is in its table."""

import runpy
import subprocess
import sys

from support import ROOT

SCRIPT = str(ROOT / "scripts" / "count_statements.py")
SOURCE = '''"""A docstring."""


def double(number):
    """Another."""
    return 2 * number
'''


def test_statements_and_nodes_are_counted_without_docstrings() -> None:
    # module, def, arguments, argument, return, product, 2, *, number
    assert runpy.run_path(SCRIPT)["count"](SOURCE) == (2, 9)


def test_every_room_is_in_the_table_beside_a_commit() -> None:
    table = subprocess.run([sys.executable, SCRIPT, "HEAD"], capture_output=True, text=True)
    assert not table.returncode, table.stderr
    rows = {line[:28].strip(): line[28:].split() for line in table.stdout.splitlines()[1:]}
    assert {"main.py", "retexo/exchange", "scripts", "benchmarks", "examples", "tests/unit"} <= {
        *rows
    }
    for column in range(4):
        counts = {name: int(row[column].replace(",", "")) for name, row in rows.items()}
        total = counts.pop("everything, in all")
        folders = [number for name, number in counts.items() if not name.endswith("in all")]
        assert sum(folders) == total > counts["product, in all"] > counts["tests, in all"] > 0
