"""app=report on literal run directories: statistics, groups, tables, figures, page, sentences."""

import csv
import html
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from graph_files import change_json
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from sklearn import metrics
from support import ROOT

from partitioning.errors import InputError
from retexo.apps import report
from retexo.results import figures
from retexo.results.conclusion import conclude, standard_error
from retexo.results.formats import format_bytes
from retexo.results.groups import DataSet, compare_pairs, group
from retexo.results.runs import CLASS_SCORES, Run, read_run, read_runs
from retexo.results.tables import comparison_table, results_table, unfinished_table
from retexo.settings.compose import compose
from retexo.tasks import score_histogram
from retexo.tasks.round_metrics import RANKING
from retexo.tasks.score_histogram import (
    count_scores,
    even_bin_edges,
    refine_edges,
    summarise_bins,
)

BYTES = {
    "total": 1_500,
    "by_kind": {"setup": 500, "gradients": 1_000, "parameters": 0},
    "by_layer": [900, 400],
    "outside_layers": 200,
    "by_layer_and_kind": [
        {"setup": 0, "gradients": 900, "parameters": 0},
        {"setup": 300, "gradients": 100, "parameters": 0},
        {"setup": 200, "gradients": 0, "parameters": 0},
    ],
    "by_peer": [[0, 700], [800, 0]],
}


OF_SUMMARY = (
    "data_checksums",
    "error",
    "classes",
    "confusion",
    "score_bins",
    "chosen",
    "baseline",
)


def write_run(
    path: Path, *, seed: int = 0, accuracy: float | None = 0.5, status: str = "done", **changes: Any
) -> Path:
    """A run directory.

    Changes are settings, or, where the name is one of summary.json's, fields of it.
    """
    settings = {
        "model": {"name": "gcn"},
        "dataset_name": "toy",
        "partition_method": "random",
        "num_partitions": 2,
        "seed": seed,
        "split": {"kind": "given", "seed": seed},
        "partition": {"seed": seed},
        "synthetic": {"seed": seed},
        "partition_dir": f"parts/{seed}",
        "num_rounds": [5, 5],
    }
    summary: dict[str, Any] = {
        "status": status,
        "versions": {"torch": "2"},
        "partition_digest": f"digest {seed}",
    }
    if status == "done":
        scores = {"accuracy": accuracy, "micro_f1": accuracy, "macro_f1": accuracy}
        summary |= {
            "val": scores,
            "test": scores,
            "rounds": [3, 4],
            "seconds": {"train": 2.0, "total": 4.0},
        }
        summary |= {
            "peak_memory_bytes": [2**20, 2**21],
            "peak_private_bytes": [1, 2],
            "bytes": BYTES,
        }
    for name, value in changes.items():
        (summary if name in (*summary, *OF_SUMMARY) else settings)[name] = value
    path.mkdir(parents=True)
    (path / "summary.json").write_text(
        json.dumps({**summary, "settings": summary.get("settings", settings)})
    )
    lines = [
        {"layer": layer, "round": r, "val_metric": r / 10, "seconds": 0.1}
        for layer in (0, 1)
        for r in range(4)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def draw(content: DataSet | Run) -> dict[str, Any]:
    return {name: figure for name, (_, figure) in figures.draw(content).items()}


def only(folder: Path) -> DataSet:
    (data,) = group(read_runs(folder))
    return data


# --- statistics ----------


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=12))
def test_paired_difference_is_the_paired_t_test(pairs: list[tuple[float, float]]) -> None:
    first, second = ({str(draw): pair[side] for draw, pair in enumerate(pairs)} for side in (0, 1))
    difference = compare_pairs(first, second)
    differences = np.array([b - a for a, b in pairs])
    if differences.std() < 1e-9:  # scipy divides by zero there, or by rounding noise
        return
    expected = scipy.stats.ttest_rel(list(second.values()), list(first.values()))
    interval = expected.confidence_interval(0.95)
    assert (difference["low"], difference["high"]) == pytest.approx(
        (interval.low, interval.high), rel=1e-6, abs=1e-9
    )


def test_equal_differences_have_no_width() -> None:
    difference = compare_pairs({"a": 0.5, "b": 0.25}, {"a": 0.5, "b": 0.25})
    assert difference == {"n": 2, "mean": 0, "low": 0, "high": 0}


# --- reading ----------


def test_statuses_are_told_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(
        tmp_path / "deep" / "er" / "b",
        status="failed",
        error="rank 1 was killed by SIGKILL\ntraceback",
    )
    write_run(tmp_path / "c", status="running")
    runs = {run.path.name: run for run in read_runs(tmp_path)}
    assert {name: run.status for name, run in runs.items()} == {
        "a": "done",
        "b": "failed",
        "c": "unfinished",
    }
    assert runs["b"].reason == "rank 1 was killed by SIGKILL"
    assert "killed; last written 20" in runs["c"].reason


DAMAGES: dict[str, tuple[Any, str]] = {
    "cut": ('{"status": "do', "Unterminated"),
    "empty": ("", "Expecting value"),
    "list": ("[1]", "holds a JSON list, needs an object"),
    "changed": ({"sha256": "0"}, "was changed since it was written"),
    "status": ({"status": "finished"}, "'finished'"),
    "no bytes": ({"bytes": None}, "'NoneType' object is not subscriptable"),
    "no total": ({"bytes": {}}, "has no 'total'"),
    "text for a number": (
        {"test": {"accuracy": "0.8", "micro_f1": 1, "macro_f1": 1}},
        "test accuracy is '0.8'",
    ),
    "infinite": ({"seconds": {"train": float("inf"), "total": 1}}, "seconds train is inf"),
    "settings": ({"settings": 7}, "no attribute 'items'"),
    "vast": ({"seconds": {"train": 1e308, "total": 1}}, "seconds train is 1e+308"),
    "surrogates": ({"versions": {"torch": "\ud800"}}, "surrogates not allowed"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_summary_is_named_and_spoils_no_other_run(tmp_path: Path, name: str) -> None:
    damage, reason = DAMAGES[name]
    write_run(tmp_path / "good")
    path = write_run(tmp_path / "bad") / "summary.json"
    if isinstance(damage, dict):
        damage = json.dumps({**json.loads(path.read_text()), **damage})
    path.write_text(damage)
    runs = read_runs(tmp_path)
    assert [run.status for run in runs] == ["damaged", "done"]
    assert reason in runs[0].reason
    table = unfinished_table(runs)
    assert table.rows == [[str(tmp_path / "bad"), "damaged", runs[0].reason]]
    assert len(only(tmp_path).methods[0].done) == 1


@pytest.mark.parametrize("line", ['{"layer": 1, "rou', "0", '{"train_loss": "x"}', "\ud800"])
def test_a_damaged_file_has_no_curve(tmp_path: Path, line: str) -> None:
    path = write_run(tmp_path / "a") / "metrics.jsonl"
    undamaged = path.read_bytes()
    path.write_bytes(undamaged + b'{"layer": 1, "rou')  # of a killed run
    assert read_run(tmp_path / "a").read_rounds()["round"].tolist() == [0, 1, 2, 3] * 2
    path.write_bytes(undamaged + line.encode(errors="surrogatepass") + b"\n")
    assert read_run(tmp_path / "a").read_rounds().empty


def test_no_folder_and_no_runs_are_mistakes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        read_runs(tmp_path / "none")
    with pytest.raises(InputError, match=r"no summary\.json below it.*app=train"):
        read_runs(tmp_path)


def test_runs_that_all_failed_are_listed(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / "runs" / str(seed), seed=seed, status="failed", error="no")
    page = report.make_report(tmp_path / "out", tmp_path / "runs")
    assert "2 runs: 2 failed" in page.read_text()
    with (tmp_path / "out" / "summary.csv").open() as file:
        assert [(row["method"], row["n"], row["failed"]) for row in csv.DictReader(file)] == [
            ("gcn", "0", "2")
        ]


def test_runs_of_both_folders_of_hydra_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "_pictures", lambda *_: [])  # two seconds a page
    with pytest.raises(InputError, match=r"outputs and multirun: no such folder"):
        report.run(compose(["app=report"]), tmp_path / "report")
    write_run(tmp_path / "multirun" / "2026-01-01" / "00-00-00" / "0")
    assert "1 run: 1 done" in report.run(compose(["app=report"]), tmp_path / "one").read_text()
    write_run(tmp_path / "outputs" / "a", seed=1)
    assert (
        "2 runs: 2 done, read from outputs and multirun"
        in report.run(compose(["app=report"]), tmp_path / "both").read_text()
    )
    assert (
        "1 run: 1 done, read from outputs."
        in report.run(
            compose(["app=report", "report.runs=outputs"]), tmp_path / "given"
        ).read_text()
    )


# --- groups ----------


TOY = "toy, 2 parts (random)"
USUAL = {"num_rounds": [200, 200, 200], "hidden_dim": 64}  # 64 is no default, and common to all
GROUPS: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str, int]]]] = {
    "seeds and places are no other method": (
        [
            *({"seed": seed, "log_every": seed, "dataset_dir": f"/{seed}"} for seed in range(3)),
            *({"seed": seed, "hidden_dim": 16, "model": {"name": "sage"}} for seed in range(3)),
            {"trainer": {"name": "bns"}, "bns": {"p": 0.1}, "parts_per_node": 1},
        ],
        [(TOY, "gcn", 3), (TOY, "sage", 3), (TOY, "gcn bns", 1)],
    ),
    "of one name say what differs between them and is no default": (
        [
            USUAL,
            {**USUAL, "dropout": 0.5},
            {**USUAL, "dropout": 0.5, "gradient": {"mode": "local"}},
            {**USUAL, "num_rounds": [30, 30]},
            {**USUAL, "num_rounds": [30, 20]},
        ],
        [
            (TOY, "gcn", 1),
            (TOY, "gcn dropout=0.5", 1),
            (TOY, "gcn dropout=0.5 gradient=local", 1),
            (TOY, "gcn num_rounds=30", 1),
            (TOY, "gcn num_rounds=30,20", 1),
        ],
    ),
    "data sets are apart": (
        [
            {},
            {"dataset_name": "file", "dataset_file": "/home/me/own.npz"},
            {"dataset_name": "file", "dataset_file": "/home/you/own.npz", "seed": 1},
            {"num_partitions": 1, "bytes": {**BYTES, "by_peer": [[0]]}},
        ],
        [
            (TOY, "gcn", 1),
            ("own, 2 parts (random)", "gcn", 2),
            ("toy, 1 part (random)", "gcn", 1),
        ],
    ),
    "data that were made otherwise are apart": (
        [
            {"features": {"kind": "given"}},
            {"features": {"kind": ["given"]}, "seed": 1},
            {"features": {"kind": ["given", "degree"]}},
            {"data_checksums": {"dataset_file": "1" * 64}},
            {"data_checksums": {"dataset_file": "2" * 64}},
        ],
        [
            (TOY, "gcn", 2),
            (f"{TOY} features.kind=given,degree", "gcn", 1),
            (f"{TOY} sha256 of dataset_file=11111111", "gcn", 1),
            (f"{TOY} sha256 of dataset_file=22222222", "gcn", 1),
        ],
    ),
}
"""Runs, and the name of their data, that of their method and how many there are."""


@pytest.mark.parametrize("name", GROUPS)
def test_groups(tmp_path: Path, name: str) -> None:
    runs, groups = GROUPS[name]
    for place, changes in enumerate(runs):
        write_run(tmp_path / str(place), **changes)
    data_sets = group(read_runs(tmp_path))
    methods = [
        (data.name, method.name, len(method.done)) for data in data_sets for method in data.methods
    ]
    assert methods == groups


def test_pairs_share_seeds_split_and_parts(tmp_path: Path) -> None:
    """Seed 2's second run has the same seeds and other parts: no pair."""
    for seed, (first, second) in enumerate([(0.5, 0.6), (0.7, 0.9), (0.1, 0.2)]):
        write_run(tmp_path / f"a{seed}", seed=seed, accuracy=first)
        digest = "others" if seed == 2 else f"digest {seed}"
        write_run(
            tmp_path / f"b{seed}",
            seed=seed,
            accuracy=second,
            model={"name": "sage"},
            partition_digest=digest,
        )
    table = comparison_table(only(tmp_path))
    interval = scipy.stats.ttest_1samp([0.1, 0.2], 0).confidence_interval()
    assert table.rows[0][:4] == [
        "sage minus gcn",
        "2",
        "+0.1500",
        f"[{interval.low:+.4f}, {interval.high:+.4f}]",
    ]


# --- what is written ----------


def words_of(page: str) -> str:
    """The text between the tags, as a browser shows it."""
    return html.unescape(re.sub(r"<[^>]*>", "", page)).replace("\xa0", " ")


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on three methods: one of three seeds, one of a single seed, one that only failed.

    And a damaged run.
    """
    folder = tmp_path_factory.mktemp("report")
    for seed, accuracy in enumerate([0.5, 0.6, 0.7]):
        row = {
            "class": "<b>",
            "precision": accuracy,
            "recall": 1.0,
            "f1": 0.5,
            "support": 30 + seed,
        }
        classes = {"val": [], "test": [row]}
        write_run(folder / "runs" / f"a{seed}", seed=seed, accuracy=accuracy, classes=classes)
    write_run(folder / "runs" / "b", model={"name": "gat"}, accuracy=0.8)
    write_run(
        folder / "runs" / "c",
        model={"name": "<script>"},
        status="failed",
        error="<img src=//evil> & | $x_",
    )
    (write_run(folder / "runs" / "d") / "summary.json").write_text("{")
    report.make_report(folder / "out", folder / "runs")
    return folder / "out"


def test_the_page_is_escaped_and_needs_nothing_else(reported: Path) -> None:
    page = (reported / "report.html").read_text()
    assert "<script" not in page
    assert "default-src 'none'; img-src data:" in page  # the browser keeps it so
    references = re.findall(r"(?:src|href|srcset|data)=[\"']([^\"']*)", page)
    assert references
    assert all(each.startswith(("#", "data:image/svg+xml;base64,")) for each in references)
    for text in (
        "<img src=//evil>",
        "0.6000 ± 0.1000",
        "6 runs: 4 done, 1 failed, 1 damaged",
        "<script>",
    ):
        assert text in words_of(page)


def test_one_draw_has_no_spread_and_a_failed_run_is_shown_as_failed(reported: Path) -> None:
    results = (reported / "report.md").read_text().partition("### Bytes by layer and kind")[0]
    rows = {line.split(" | ")[0]: line for line in results.splitlines()}
    assert "| 1 | 0.8000 | 0.8000 | 1.5 kB |" in rows["| gat"]
    assert "| 0 (1 failed) | - | - |" in rows["| <script>"]


def test_each_class_has_a_row_of_means(reported: Path) -> None:
    text = (reported / "report.md").read_text()
    row = "| gcn | <b> | 0.6000 ± 0.1000 | 1.0000 ± 0.0000 | 0.5000 ± 0.0000 | 31 ± 1 |"
    assert [line for line in text.splitlines() if "<b>" in line] == [row]


def test_csv_has_plain_numbers(reported: Path) -> None:
    with (reported / "summary.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert float(rows["gcn"]["test accuracy, mean"]) == pytest.approx(0.6)
    assert float(rows["gcn"]["test accuracy, spread"]) == pytest.approx(0.1)
    assert (rows["gcn"]["bytes gradients, mean"], rows["gcn"]["rounds, mean"]) == ("1000.0", "7.0")
    assert rows["gat"]["test accuracy, spread"] == ""
    with (reported / "runs.csv").open() as file:
        runs = list(csv.DictReader(file))
    assert sorted(row["status"] for row in runs) == ["damaged", *["done"] * 4, "failed"]
    accuracies = [float(row["test accuracy"]) for row in runs if row["method"] == "gcn"]
    assert np.mean(accuracies) == pytest.approx(0.6)


def test_figures_show_the_figures_of_the_table(tmp_path: Path) -> None:
    for seed, accuracy in enumerate([0.5, 0.7]):
        write_run(tmp_path / str(seed), seed=seed, accuracy=accuracy)
    drawn = draw(only(tmp_path))
    axes = drawn["accuracy-bytes"].axes[0]
    assert axes.get_xscale() == "log"
    assert axes.collections[0].get_offsets().tolist() == [[1500, 0.5], [1500, 0.7]]
    assert axes.containers[0].lines[0].get_xydata().tolist() == [[1500, 0.6]]  # type: ignore[attr-defined]
    assert axes.get_figure().legends[0].texts[0].get_text() == "gcn (n = 2)"


def test_nothing_is_overwritten(reported: Path) -> None:
    with pytest.raises(InputError, match=r"holds report\.html"):
        report.make_report(reported, reported.parent / "runs")


def test_a_missing_library_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "runs" / "a")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(InputError, match=r"pip install -e '\.\[report\]'"):
        report.make_report(tmp_path / "out", tmp_path / "runs")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (1_234, "1.23 kB"),
        (999_600, "1 MB"),
        (4.5e9, "4.5 GB"),
    ],
)
def test_bytes_as_text(value: float, text: str) -> None:
    assert format_bytes(value) == text


# --- one run ----------


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on one run of two classes."""
    folder = tmp_path_factory.mktemp("single")
    rows = [
        {"class": name, "precision": 0.5, "recall": 0.25, "f1": 0.3, "support": support}
        for name, support in (("<b>", 40), ("other", 10))
    ]
    run = write_run(
        folder / "run",
        accuracy=0.8,
        classes={"test": rows},
        confusion=[[30, 10], [4, 6]],
        chosen={"metric": "balanced_accuracy"},
        baseline={"class": "<b>", "accuracy": 0.8, "balanced_accuracy": 0.5},
        test={"accuracy": 0.72, "balanced_accuracy": 0.675, "micro_f1": 0.72, "macro_f1": 0.6},
    )
    features = ["4 columns of each node", "nodes: left out: note, columns.ignore"]
    change_json(run / "summary.json", lambda summary: summary.update(features=features))
    report.make_report(folder / "out", run)
    return folder / "out"


def test_the_page_of_one_run(single: Path) -> None:
    words = words_of((single / "report.html").read_text())
    for text in (
        "Balanced accuracy on test is 0.6750 (standard error 0.",
        "always predicting <b>, the most frequent class of training and validation",
        "The 2 workers sent 1.5 kB: gradients 67%",
        "nodes: left out: note, columns.ignore",
    ):
        assert text in words
    text = (single / "report.md").read_text()
    for row in (
        "| balanced accuracy | - | 0.6750 | 0.0765 | 0.5000 |",
        "| <b> | 0.5000 | 0.2500 | 0.3000 | 40 |",
        "| layer 1 | 300 B | 100 B | 400 B |",
        "| total | 500 B | 1 kB | 1.5 kB |",
        "| training | 2.00 |",
        "| num_partitions | 2 | 4 |",
    ):
        assert row in text
    assert "partition.seed" not in text, "it is that of seed"
    names = {"learning", "confusion", "pairs"}
    for suffix, start in (("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
        files = {path.stem: path for path in (single / "figures").glob(f"*.{suffix}")}
        assert files.keys() == names
        assert all(path.read_bytes().startswith(start) for path in files.values())


def test_a_report_loads_little_and_equal_runs_give_equal_files(single: Path) -> None:
    """A fresh process loads neither torch nor sklearn, which take half of its time."""
    run = single.parent / "run"
    code = (
        "import sys; from pathlib import Path; from retexo.apps import report;"
        f" report.make_report(Path({str(single.parent / 'again')!r}), Path({str(run)!r}));"
        " heavy = {'torch', 'scipy.stats', 'sklearn'} & sys.modules.keys();"
        " assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=100)
    for path in (single / "figures").iterdir():
        assert (single.parent / "again/figures" / path.name).read_bytes() == path.read_bytes()


def test_figures_of_one_run_show_its_counts(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        classes={"test": [{"class": name, **dict.fromkeys(CLASS_SCORES, 1)} for name in "ab"]},
        confusion=[[30, 10], [1, 6]],
    )
    drawn = draw(read_run(run))
    axes = drawn["confusion"].axes[0]
    assert [text.get_text() for text in axes.texts] == ["30", "10", "1", "6"]
    assert axes.images[0].get_array().tolist() == [[0.75, 0.25], [1 / 7, 6 / 7]]
    assert [text.get_color() for text in axes.texts] == ["white", "black", "black", "white"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert drawn["pairs"].axes[0].images[0].get_array().tolist() == [[None, 700], [800, None]]
    metric = drawn["learning"].axes[1]
    assert metric.lines[0].get_xydata().tolist() == [[r, r / 10] for r in range(4)]
    assert metric.lines[1].get_xydata().tolist() == [[3, 0.3]]


def test_curves_of_a_rare_class(tmp_path: Path) -> None:
    """The areas under both curves are those of scikit-learn."""
    rng = np.random.default_rng(0)
    truth = rng.random(4000) < 0.04
    margin = torch.from_numpy(rng.normal(size=4000) + 1.5 * truth - 3).float()
    edges = even_bin_edges(512)
    for _ in range(3):
        counts = count_scores(margin, torch.from_numpy(truth), edges)
        edges, former = refine_edges(edges, counts), edges
    bins = summarise_bins(former, counts)
    run = write_run(
        tmp_path / "run",
        score_bins={"test": bins},
    )
    drawn = draw(read_run(run))
    roc, precision = drawn["ranking"].axes
    false, recall = roc.lines[0].get_xydata().T
    assert np.trapezoid(recall, false) == pytest.approx(
        metrics.roc_auc_score(truth, margin), abs=0.005
    )
    recall, precisions = precision.lines[0].get_xydata().T
    area = (np.diff(recall, prepend=0) * precisions).sum()
    assert area == pytest.approx(metrics.average_precision_score(truth, margin), abs=0.02)


def test_methods_are_compared_by_what_stopping_looked_at(tmp_path: Path) -> None:
    scores = {"accuracy": 0.97, "micro_f1": 0.97, "macro_f1": 0.5}
    for model in ("gcn", "gat"):
        for seed in (0, 1):
            auc = 0.7 + seed / 10 + (0.1 if model == "gat" else 0)
            write_run(
                tmp_path / f"{model}{seed}",
                seed=seed,
                model={"name": model},
                chosen={"metric": "roc_auc"},
                test={**scores, "roc_auc": auc, "average_precision": 0.1},
            )
    data = only(tmp_path)
    assert data.headline == "test ROC AUC"
    assert {"test ROC AUC", "test accuracy"} <= set(results_table(data).columns)
    table = comparison_table(data)
    assert (table.title, table.rows[0][2]) == ("Test ROC AUC, paired", "-0.1000")


def summary_of(truth: np.ndarray, predicted: np.ndarray, metric: str, value: float) -> Any:
    """The fields of summary.json that the sentences read."""
    recalls = metrics.recall_score(truth, predicted, average=None)
    rows = [
        {"class": number, "recall": recall, "support": int((truth == number).sum())}
        for number, recall in enumerate(recalls)
    ]
    return {
        "test": {metric: value},
        "chosen": {"metric": metric},
        "classes": {"test": rows},
        "confusion": metrics.confusion_matrix(truth, predicted).tolist(),
    }


SCORES = {
    "accuracy": metrics.accuracy_score,
    "balanced_accuracy": metrics.balanced_accuracy_score,
    "macro_f1": lambda truth, predicted: metrics.f1_score(truth, predicted, average="macro"),
    "roc_auc": metrics.roc_auc_score,
    "average_precision": metrics.average_precision_score,
}


def standard_error_of_ranking(scores: np.ndarray, truth: np.ndarray, score: Any) -> float:
    edges = even_bin_edges(64)
    for _ in range(4):
        counts = count_scores(torch.from_numpy(scores), torch.from_numpy(truth > 0), edges)
        edges = refine_edges(edges, counts)
    return score_histogram.standard_error(score, counts)


@pytest.mark.parametrize("name", SCORES)
def test_a_standard_error_is_the_deviation_over_other_test_nodes(name: str) -> None:
    """600 nodes, a fifth of them positive, are drawn 200 times."""
    rng = np.random.default_rng(0)
    values, errors = [], []
    for _ in range(200):
        truth = (rng.random(600) < 0.2).astype(int)
        scores = rng.normal(size=600) + 1.2 * truth
        ranked = name in ("roc_auc", "average_precision")
        value = SCORES[name](truth, scores if ranked else (scores > 1).astype(int))
        values.append(value)
        if len(errors) < 20:
            summary = summary_of(truth, (scores > 1).astype(int), name, value)
            errors.append(
                standard_error_of_ranking(scores, truth, RANKING[name])
                if ranked
                else standard_error(summary, name)
            )
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)


def make_summary(**changes: Any) -> dict[str, Any]:
    summary = {
        "train": {"accuracy": 0.99},
        "test": {"accuracy": 0.8},
        "chosen": {"metric": "accuracy"},
        "classes": {
            "test": [{"class": "a", "support": 60}, {"class": "b", "support": 40}],
            "val": [{"class": "a", "support": 20}],
        },
        "val_by_layer": [0.7, 0.8],
        "baseline": {"class": "a", "accuracy": 0.6},
        "rounds": [7, 20],
        "bytes": {"total": 1500, "by_kind": {"setup": 500, "features": 1000}, "by_peer": [[], []]},
        "settings": {
            "num_rounds": [20],
            "num_layers": 2,
            "stopping": {"patience": 5},
            "seed": 1,
            "model": {"name": "sage"},
        },
    }
    return {**summary, **changes}


def test_the_sentences_of_a_run() -> None:
    assert conclude(make_summary(), "runs/1") == [
        "Accuracy on test is 0.8000 (standard error 0.0400); always predicting a, the most frequent"
        " class of training and validation, has 0.6000.",
        "The 2 workers sent 1.5 kB: features 67%, setup 33%.",
        "Layer 1 had no more rounds left: a larger num_rounds may help.",
        "Layer 1 raised validation from 0.7000 to 0.8000: deeper networks may help"
        " (+experiment=deep).",
        "On training nodes it is 0.9900: more dropout or weight_decay may help.",
        "Other seeds differ, too: seeds=[0,1,2] shows by how much.",
        "Curves, classes and bytes: app=report report.runs=runs/1",
    ]


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({"val_by_layer": [0.72, 0.8]}, None),  # 100 test and 20 validation nodes: .04 and .09
        ({"val_by_layer": [0.8]}, None),
        ({"settings": {"num_layers": "auto", "model": {"name": "sage"}}}, None),
        ({"settings": {"num_layers": 2, "model": {"name": "gat"}}}, "num_layers=auto"),
    ],
)
def test_more_layers_are_advised_where_the_last_one_brought_more_than_chance(
    changes: dict[str, Any], command: str | None
) -> None:
    advice = [
        sentence for sentence in conclude(make_summary(**changes), "run") if "deeper" in sentence
    ]
    assert [sentence.endswith(f"({command}).") for sentence in advice] == [True] * (
        command is not None
    )


@pytest.mark.parametrize(
    "run_dir", ["runs/1", "Läufe/ä b", 'a "quoted" one', "ends\\", 'a\\"b', "${now}", "it's"]
)
def test_the_command_of_a_report_is_read_back_by_hydra(run_dir: str) -> None:
    command = conclude(make_summary(), run_dir)[-1].partition(": ")[2]
    override = OverridesParser.create().parse_override(shlex.split(command)[1])
    assert OmegaConf.create({"runs": override.value()}).runs == run_dir


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"test": {"accuracy": 0.65}},
            "not clearly above the 0.6000 of always predicting a, the most",
        ),
        (
            {"test": {"accuracy": None}},
            "Accuracy on test is not defined: too few test nodes, or none.",
        ),
        ({"chosen": {"metric": "loss"}}, "Accuracy on test is 0.8000"),
        (
            {
                "chosen": {"metric": "mrr"},
                "test": {"mrr": 0.5, "ranked": 100},
                "baselines": {"cosine": {"mrr": 0.1}, "Adamic-Adar": {"mrr": 0.3}},
            },
            "MRR on test is 0.5000 (standard error 0.0500); Adamic-Adar without training has",
        ),
        (
            {
                "chosen": {"metric": "auc"},
                "test": {"auc": 0.5, "ranked": 100, "sources": 25},
                "baselines": {"cosine": {"auc": 0.3}},
            },
            "AUC on test is 0.5000 (standard error 0.0500); cosine without training has",
        ),
        (
            {
                "chosen": {"metric": "loss"},
                "targets": {"test": [{"support": 100}]},
                "test": {"r2": 0.5},
                "baseline": {"r2": -0.01},
            },
            "R2 on test is 0.5000 (standard error 0.0707); the mean of the training nodes has",
        ),
    ],
)
def test_the_score_of_other_runs(changes: dict[str, Any], sentence: str) -> None:
    assert sentence in conclude(make_summary(**changes), "run")[0]
