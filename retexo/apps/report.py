"""`app=report`: tables, figures and an HTML page on one run or any number of runs."""

import io
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from partitioning.file_io import read_bytes
from retexo.apps.resume import check_unused
from retexo.results import figures, run_page, tables
from retexo.results.conclusion import conclude
from retexo.results.groups import DataSet, group
from retexo.results.page import Picture, Section, page
from retexo.results.run_lock import locks_run_dir
from retexo.results.runs import Run, read_runs
from retexo.results.tables import Table
from retexo.settings.run_settings import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HYDRA_FOLDERS = ("outputs", "multirun")
"""Folders of Hydra's single runs and of --multirun."""
PNG_DPI = 150
STATUSES = ("done", "failed", "unfinished", "damaged")


@locks_run_dir
def run(settings: Settings, run_dir: Path) -> Path:
    """Report on the runs below report.runs; return the page, run_dir/report.html."""
    return make(
        run_dir, *map(Path, [settings.report.runs] if settings.report.runs else HYDRA_FOLDERS)
    )


def make(run_dir: Path, *folders: Path) -> Path:
    """Read the runs below folders; write report.html, report.md, csv files and figures/.

    Raises InputError where there is no run, matplotlib is missing, or run_dir holds a report
    already.
    """
    figures.check_installed()
    page_path = run_dir / "report.html"
    check_unused(run_dir, (page_path.name,))
    runs = read_runs(*folders)
    data_sets = group(runs)
    run_dir.mkdir(parents=True, exist_ok=True)
    alone = runs[0].status == "done" and [run.path for run in runs] == list(folders)
    with tempfile.TemporaryDirectory(dir=run_dir, prefix=".report-") as name:
        if alone:
            _write_run(Path(name), runs[0], data_sets[0])
        else:
            _write(Path(name), " and ".join(map(tables.format_path, folders)), runs, data_sets)
        for path in sorted(
            Path(name).iterdir(), key=lambda path: path.name == page_path.name
        ):  # the page last
            shutil.rmtree(run_dir / path.name, ignore_errors=True)
            path.replace(run_dir / path.name)
    for data in [] if alone else data_sets:
        print(f"{data.name}\n")
        print("\n".join(table.markdown() for table in _tables(data)))
    print(f"{_count_statuses(runs)}; {page_path}")
    return page_path


def _write(out: Path, folders: str, runs: Sequence[Run], data_sets: Sequence[DataSet]) -> None:
    """Write report.html, report.md, the csv files and the figures of several runs."""
    (out / "figures").mkdir()
    sections = [
        Section(
            data.name,
            _tables(data),
            _pictures(data, f"{index}-{_as_file_name(data.name)}-", out),
        )
        for index, data in enumerate(data_sets)
    ]
    unfinished = tables.unfinished_table(runs)
    notes = _notes(data_sets)
    last = [table for table in (unfinished, notes) if table is not None]
    if last:
        sections.append(Section("Notes", last, plain=True))
    introduction = f"{_count_statuses(runs)}, read from {folders}."
    title = "Training runs"
    (out / "report.html").write_text(
        page(title, introduction, sections, _describe_versions(runs)), encoding="utf-8"
    )
    (out / "report.md").write_text(_markdown(title, introduction, sections), encoding="utf-8")
    rows = {
        "summary.csv": tables.summary_rows(data_sets),
        "comparisons.csv": tables.comparison_rows(data_sets),
        "runs.csv": tables.run_rows(data_sets, runs),
    }
    for name, content in rows.items():
        (out / name).write_text(tables.format_csv(content), encoding="utf-8")


def _write_run(out: Path, run: Run, data: DataSet) -> None:
    """The page of one run."""
    (out / "figures").mkdir()
    path = tables.format_path(run.path)
    introduction = " ".join(conclude(run.summary, path)[:-1])
    pictures = {each.title: each for each in _pictures(run, "", out)}
    sections = run_page.sections_of(run, data, pictures)
    title = f"{data.methods[0].name} on {data.name}: {path}"
    (out / "report.html").write_text(
        page(title, introduction, sections, _describe_versions([run])), encoding="utf-8"
    )
    (out / "report.md").write_text(_markdown(title, introduction, sections), encoding="utf-8")


def _tables(data: DataSet) -> list[Table]:
    """Return the tables of a data set that have content."""
    found = [
        tables.results_table(data),
        tables.class_table(data),
        tables.bytes_table(data),
        tables.comparison_table(data),
    ]
    return [table for table in found if table is not None]


def _as_file_name(name: str) -> str:
    return re.sub(r"\W+", "-", name, flags=re.ASCII).strip("-")[:60]


def _pictures(content: DataSet | Run, prefix: str, out: Path) -> list[Picture]:
    """Draw the figures of a data set or of a run, and save each."""
    narrow = figures.draw(content, figures.NARROW)
    return [
        _picture(f"{prefix}{kind}", figures.CAPTIONS[kind], figure, narrow[kind], out)
        for kind, figure in figures.draw(content).items()
    ]


def _picture(name: str, caption: str, wide: "Figure", narrow: "Figure", out: Path) -> Picture:
    """Save a figure as SVG, PDF and PNG, and return it for the page."""
    for suffix in ("svg", "pdf", "png"):
        (out / "figures" / f"{name}.{suffix}").write_bytes(_rendered(wide, suffix))
    svg = read_bytes(out / "figures" / f"{name}.svg")
    spans = wide.get_figwidth() > figures.WIDE / 2
    return Picture(name, caption, svg, _rendered(narrow, "svg"), spans)


def _rendered(figure: "Figure", suffix: str) -> bytes:
    """Return a figure as a file without a date, so that equal runs give equal files."""
    file = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
    figure.savefig(file, format=suffix, metadata=metadata[suffix], dpi=PNG_DPI)
    return file.getvalue()


def _markdown(title: str, introduction: str, sections: Sequence[Section]) -> str:
    """Return the tables and figures of all sections as markdown."""
    parts = [f"# {title}\n\n{introduction}\n"]
    for section in sections:
        parts.append(f"## {section.title}\n")
        parts += [table.markdown() for table in section.tables]
        parts += [
            f"![{picture.title}](figures/{picture.title}.svg)\n\n{picture.caption}\n"
            for picture in section.pictures
        ]
    return "\n".join(parts)


def _notes(data_sets: Sequence[DataSet]) -> Table | None:
    """Remarks on the means: repeated draws and mixed versions."""
    rows = []
    for data in data_sets:
        for method in data.methods:
            if method.repeats:
                rows.append(
                    [
                        data.name,
                        method.name,
                        f"{method.repeats} runs repeat a draw and are averaged first",
                    ]
                )
            versions = {str(sorted(run.versions.items())) for run in method.done}
            if len(versions) > 1:
                rows.append(
                    [
                        data.name,
                        method.name,
                        "runs with different versions of the program or its libraries",
                    ]
                )
    return Table("Notes", ["data", "method", "remark"], rows) if rows else None


def _count_statuses(runs: Sequence[Run]) -> str:
    found = Counter(run.status for run in runs)
    return f"{len(runs)} run{'s' * (len(runs) > 1)}: " + ", ".join(
        f"{found[status]} {status}" for status in STATUSES if found[status]
    )


def _describe_versions(runs: Sequence[Run]) -> str:
    found = {
        name: sorted({str(run.versions.get(name)) for run in runs if name in run.versions})
        for name in dict.fromkeys(name for run in runs for name in run.versions)
    }
    return (
        "Trained with "
        + "; ".join(f"{name} {', '.join(versions)}" for name, versions in found.items())
        + "."
    )
