"""One HTML page that needs no other file, no network and no script; its text is page.html.jinja."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retexo.results.tables import Table

MAX_ROWS = 40
"""Of a table that the page shows unfolded."""


@dataclass(frozen=True)
class Picture:
    """A figure as svg, and what it shows."""

    title: str
    caption: str
    svg: bytes
    narrow: bytes
    """The same for a narrow window."""
    spans: bool
    """Whether it takes the whole width of a wide window, not half of it."""


@dataclass(frozen=True)
class Section:
    """A heading, its tables and its pictures."""

    title: str
    tables: Sequence[Table]
    pictures: Sequence[Picture] = ()
    plain: bool = False
    """Whether the tables are text rather than figures."""


def page(title: str, introduction: str, sections: Sequence[Section], footer: str) -> str:
    """The whole page; every text is escaped, every picture is in it."""
    from jinja2 import (
        Environment,
        FileSystemLoader,
    )  # of the extra `report`, like matplotlib and pandas

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
    return template.render(
        title=title, introduction=introduction, sections=sections, footer=footer, max_rows=MAX_ROWS
    )
