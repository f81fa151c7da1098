"""scripts/count_statements.py: what it counts, and in which folders."""

import runpy

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


def test_files_are_counted_in_their_folder_and_in_all() -> None:
    sources = {"retexo/comm/deep/a.py": SOURCE, "main.py": SOURCE, "tests/unit/b.py": SOURCE}
    counts = runpy.run_path(SCRIPT)["count_by_folder"](sources)
    folders = {"retexo/comm": 2, "main.py": 2, "tests/unit": 2}
    totals = {"product, in all": 4, "tests, in all": 2, "everything, in all": 6}
    assert {name: int(count[0]) for name, count in counts.items()} == folders | totals
