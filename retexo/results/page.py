"""HTML report without external files or scripts; page.html.jinja is its template."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retexo.results.tables import Table

MAX_ROWS = 40
"""Longest table that the page shows unfolded."""


@dataclass(frozen=True)
class Picture:
    """A figure as SVG, with its caption."""

    title: str
    caption: str
    svg: bytes
    spans: bool
    """Whether it spans the page in a wide window."""


@dataclass(frozen=True)
class Section:
    """A heading with tables and pictures."""

    title: str
    tables: Sequence[Table]
    pictures: Sequence[Picture] = ()
    plain: bool = False
    """Whether the tables hold text instead of numbers."""


@dataclass(frozen=True)
class Report:
    """What a page shows."""

    title: str
    introduction: str
    sections: Sequence[Section]


def page(report: Report, footer: str) -> str:
    """Render the page. All text is escaped, and pictures are embedded."""
    from jinja2 import (
        Environment,
        FileSystemLoader,
    )  # of the extra `report`, like matplotlib

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["data_url"] = lambda svg: (
        f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    )
    template = templates.get_template("page.html.jinja")
    return template.render(**vars(report), footer=footer, max_rows=MAX_ROWS)
