"""Deliberate breaks: replacements in the source that same_results.py --self-test has to see."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Break:
    name: str
    file: str
    old: str
    new: str
    chain: str
    """A chain that has to differ."""
    seen_in: str
    """Part of a name of --expect that has to be among its differing values."""

    def apply(self, tree: Path) -> None:
        path = tree / self.file
        text = path.read_text(encoding="utf-8")
        assert text.count(self.old) == 1, f"{self.name}: {self.file} has {self.old!r} not once"
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


BREAKS: tuple[Break, ...] = ()
