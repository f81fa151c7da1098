"""One HTML page that needs no other file, no network and no script."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass

from retexo.report.tables import Table

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 84rem; margin: 2rem auto;
       padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 3rem; border-bottom: 1px solid #ccc; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th { vertical-align: bottom; background: #f4f4f4; }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 9rem; }
.plain th, .plain td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.note, figcaption, footer { color: #555; font-size: 13px; }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; height: auto; }
@media print { h2 { break-before: page; } figure { break-inside: avoid; } .wide { overflow: visible; } }
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""The browser itself refuses whatever would come from elsewhere."""


@dataclass(frozen=True)
class Picture:
    """A figure as svg, and what it shows."""

    title: str
    caption: str
    svg: bytes


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
    links = "".join(
        f'<li><a href="#s{place}">{html.escape(section.title)}</a></li>' for place, section in enumerate(sections)
    )
    body = "\n".join(_section(f"s{place}", section) for place, section in enumerate(sections))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
<p>{html.escape(introduction)}</p>
<nav><ul>{links}</ul></nav>
{body}
<footer>{html.escape(footer)}</footer>
</body>
</html>
"""


def _section(anchor: str, section: Section) -> str:
    tables = "\n".join(table.html() for table in section.tables)
    pictures = "\n".join(map(_figure, section.pictures))
    kind = "plain" if section.plain else "figures"
    title = html.escape(section.title)
    return f'<section id="{anchor}" class="{kind}">\n<h2>{title}</h2>\n{tables}\n{pictures}\n</section>'


def _figure(picture: Picture) -> str:
    """As an image of its own: the names inside several svg files would clash in one document."""
    source = base64.b64encode(picture.svg).decode()
    alt = html.escape(f"{picture.title}: {picture.caption}", quote=True)
    image = f'<img src="data:image/svg+xml;base64,{source}" alt="{alt}">'
    return f"<figure>\n{image}\n<figcaption>{html.escape(picture.caption)}</figcaption>\n</figure>"
