"""Hook of mkdocs: pages of the root folder join the site, README.md as its home page.

Links are written for a reader of the repository. Here those between pages are made relative to the
site, and links to files that the site lacks become plain text.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
HOME = {"README.md": "index.md"}
PAGES = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, HOME.get(name, name), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    name = page.file.src_uri
    folder = "" if name in (*PAGES, *HOME.values()) else "docs"

    def rewrite(match: re.Match[str]) -> str:
        text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, hash_sign, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(folder, path))
        path = HOME.get(path, path.removeprefix("docs/"))
        return f"[{text}]({path}{hash_sign}{anchor})" if files.get_file_from_path(path) else text

    return re.sub(r"\[([^\]\[]*)\]\(([^)\s]+)\)", rewrite, markdown)
