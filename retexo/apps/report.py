"""`app=report`: tables, figures and an HTML page on one run or any number of runs."""

import base64
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partitioning.errors import require_packages
from partitioning.files.file_io import read_bytes, read_text
from retexo.apps.resume import check_unused
from retexo.results import figures, tables
from retexo.results.atomic_write import atomic_write
from retexo.results.conclusion import conclude
from retexo.results.formats import format_path
from retexo.results.groups import DataSet, group
from retexo.results.run_lock import locks_run_dir
from retexo.results.runs import Run, read_runs
from retexo.results.tables import Table
from retexo.settings.run_settings import Settings

HYDRA_FOLDERS = ("outputs", "multirun")
"""Folders of Hydra's single runs and of --multirun."""
MAX_ROWS = 40
"""Longest table that the page shows unfolded."""
PNG_DPI = 150
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
"""Format of a figure -> metadata without a date, so that equal runs give equal files."""
TABLES = (
    tables.results_table,
    tables.class_table,
    tables.bytes_table,
    tables.comparison_table,
)
"""Tables of a data set; a function returns None where the data set has nothing to show."""
STATUSES = ("done", "failed", "unfinished", "damaged")


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


Report = dict[str, Any]
"""What report.html and report.md show: title, introduction and sections."""


@locks_run_dir
def run(settings: Settings, run_dir: Path) -> Path:
    """Report on the runs below report.runs, unset below HYDRA_FOLDERS; see `make_report`."""
    return make_report(
        run_dir, *map(Path, [settings.report.runs] if settings.report.runs else HYDRA_FOLDERS)
    )


def make_report(run_dir: Path, *folders: Path) -> Path:
    """Read the runs below folders; write report.html, report.md, csv files and figures/.

    Prints the tables; returns the path of the page. A finished run that is the only folder gets a
    report of its own, without csv files, and no tables are printed.

    Raises:
        InputError: there is no run, matplotlib is missing, or run_dir holds a report already.
    """
    require_packages("app=report", "report", "matplotlib", "jinja2")
    page_path = run_dir / "report.html"
    check_unused(run_dir, (page_path.name,))
    runs = read_runs(*folders)
    data_sets = group(runs)
    (run_dir / "figures").mkdir(parents=True, exist_ok=True)
    alone = runs[0].status == "done" and [run.path for run in runs] == list(folders)
    if alone:
        report = _report_run(runs[0], data_sets[0], run_dir)
    else:
        folder_names = " and ".join(map(format_path, folders))
        report = _report_runs(folder_names, runs, data_sets, run_dir)
    for name, text in _render(report, _describe_versions(runs)).items():
        with atomic_write(run_dir / name) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    if not alone:
        print(read_text(run_dir / "report.md"))
    print(f"{_count_statuses(runs)}; {page_path}")
    return page_path


def _report_runs(
    folders: str, runs: Sequence[Run], data_sets: Sequence[DataSet], out: Path
) -> Report:
    """Report on several runs; write the csv files and the figures to `out`."""
    file_names = [re.sub(r"[^A-Za-z0-9_]+", "-", data.name).strip("-") for data in data_sets]
    sections = [
        Section(
            data.name,
            [table for make in TABLES if (table := make(data)) is not None],
            _pictures(data, f"{index}-{name[:60]}-", out),
        )
        for index, (name, data) in enumerate(zip(file_names, data_sets, strict=True))
    ]
    if unfinished := tables.unfinished_table(runs):
        sections.append(Section("Notes", [unfinished], plain=True))
    import pandas as pd

    rows = {
        "summary.csv": tables.summary_rows(data_sets),
        "comparisons.csv": [row for data in data_sets for row in tables.compare_methods(data)],
        "runs.csv": tables.run_rows(data_sets, runs),
    }
    for name, content in rows.items():
        pd.DataFrame(content, dtype=object).to_csv(out / name, index=False, lineterminator="\n")
    introduction = f"{_count_statuses(runs)}, read from {folders}."
    return {"title": "Training runs", "introduction": introduction, "sections": sections}


def _report_run(run: Run, data: DataSet, out: Path) -> Report:
    """Report on one run; write its figures."""
    path = format_path(run.path)
    pictures = {picture.title: picture for picture in _pictures(run, "", out)}
    features = [[line] for line in run.summary.get("features", [])]
    columns = Table("Columns", ["what became of the columns of each table"], features)
    parts: dict[str, tuple[list[Table | None], tuple[str, ...]]] = {
        "Scores": ([tables.scores_table(run.summary)], ("learning",)),
        "Classes": ([tables.parts_table(run.summary)], ("confusion", "ranking")),
        "Bytes": ([tables.bytes_table(data)], ("pairs",)),
        "Features": ([columns], ()),
        "Time and settings": ([*tables.pair_tables(run), tables.settings_table(run)], ()),
    }
    sections = [
        Section(
            title,
            [
                table.keep(lambda name, _: name != "method")
                for table in tables_of_part
                if table is not None and table.rows
            ],
            [pictures[name] for name in names if name in pictures],
            plain=title == "Features",
        )
        for title, (tables_of_part, names) in parts.items()
    ]
    return {
        "title": f"{data.methods[0].name} on {data.name}: {path}",
        "introduction": " ".join(conclude(run.summary, path)[:-1]),
        "sections": [section for section in sections if section.tables or section.pictures],
    }


def _pictures(content: DataSet | Run, prefix: str, out: Path) -> list[Picture]:
    """Draw the figures of a data set or of a run; save each as SVG, PDF and PNG in out/figures."""
    pictures = []
    for kind, (caption, figure) in figures.draw(content).items():
        path = out / "figures" / f"{prefix}{kind}"
        spans = figure.get_figwidth() > figures.WIDE / 2
        with figures.style():
            for suffix, undated in UNDATED.items():
                figure.savefig(
                    f"{path}.{suffix}", metadata=undated, dpi=PNG_DPI, bbox_inches="tight"
                )
                figure.set_layout_engine(None)  # the first file has decided it
        pictures.append(Picture(path.name, caption, read_bytes(Path(f"{path}.svg")), spans))
    return pictures


def _render(report: Report, footer: str) -> dict[str, str]:
    """Return the texts of report.md and report.html by name, from their templates.

    The page needs no external files or scripts: its pictures are embedded. All its text is escaped.
    """
    from jinja2 import Environment, FileSystemLoader, select_autoescape  # of the extra `report`

    templates = Environment(
        loader=FileSystemLoader(Path(figures.__file__).parent),
        autoescape=select_autoescape(["html.jinja"]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["data_url"] = lambda svg: (
        f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    )
    return {
        name: templates.get_template(f"{name}.jinja").render(
            **report, footer=footer, max_rows=MAX_ROWS
        )
        for name in ("report.md", "report.html")
    }


def _count_statuses(runs: Sequence[Run]) -> str:
    statuses = Counter(run.status for run in runs)
    return f"{len(runs)} run{'s' * (len(runs) > 1)}: " + ", ".join(
        f"{statuses[status]} {status}" for status in STATUSES if statuses[status]
    )


def _describe_versions(runs: Sequence[Run]) -> str:
    """Say which versions of the program and its libraries trained the runs."""
    import pandas as pd

    used = pd.DataFrame([run.summary.get("versions", {}) for run in runs], dtype="string")
    listed = (f"{name} {', '.join(sorted(own.dropna().unique()))}" for name, own in used.items())
    return f"Trained with {'; '.join(listed)}." if len(used.columns) else ""
