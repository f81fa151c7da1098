"""scripts/count_statements.py: which statements count, and in which folder."""

import sys

from support import ROOT

sys.path.append(str(ROOT / "scripts"))
import count_statements

SOURCE = '''"""No statement."""

WIDTH = 3
"""Of a field: no statement either."""


def double(value: int) -> int:
    """Nor this one."""
    if value:
        return 2 * value
    return 0
'''


def test_statements_count_without_docstrings_by_folder() -> None:
    paths = (
        "main.py",
        "retexo/models/conv/gat.py",
        "retexo/arrays.py",
        "tests/unit/nn/test_gat.py",
    )
    sources = dict.fromkeys((*paths, "benchmarks/scale.py"), SOURCE)
    assert count_statements.count_by_folder(sources) == {
        "main.py": 5,
        "retexo/models": 5,
        "retexo": 5,
        "tests/unit": 5,
        "product, in all": 15,
        "tests, in all": 5,
    }
