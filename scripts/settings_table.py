"""Print the table of all settings as Markdown, for docs/settings.md.

python scripts/settings_table.py > docs/settings.md
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from retexo.settings.table import markdown

if __name__ == "__main__":
    print(markdown(), end="")
