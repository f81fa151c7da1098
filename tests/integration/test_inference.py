"""A trained network in use: app=evaluate, app=predict and retexo.load_run.

They repeat the predictions of training, and refuse what does not fit the model.
"""

import errno
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from graph_files import flip_bit, write_files
from safetensors.torch import load_file, save_file
from sklearn import metrics
from support import (
    RoundRecorder,
    edit_model,
    make_graph,
    random_graph,
    refusing,
    save_npz,
    save_untrained,
    thirds,
    train_settings,
    worker_context,
    write_partitions,
)

from partitioning.directory.read_directory import find_partition_directory
from partitioning.errors import InputError
from partitioning.files.file_io import file_checksum
from partitioning.graph.graph_data import GraphData
from retexo import load, load_run
from retexo.apps import evaluate, partition_data, predict, train
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.errors import TrainingError
from retexo.models.network import Architecture, Schema, default_model_settings
from retexo.models.stage import OutputHeads
from retexo.results import atomic_write
from retexo.results.checkpoint import open_checkpoint, save_model
from retexo.results.predictions import read_table
from retexo.settings.compose import compose
from retexo.tasks.output_heads import choose_heads
from retexo.trainers import lazy
from retexo.trainers.context import Clock
from retexo.trainers.label_propagation import make_smoother
from retexo.trainers.lazy import infer
from retexo.worker.compatibility import renumber_classes
from retexo.worker.graph import make_architecture, make_inference_context

DATA = ("dataset_name=file", "dataset_file=toy.npz", "partition_dir=parts", "num_partitions=2")
HERE = ("device=cpu", "cluster.threads=1")
SMALL = ("hidden_dim=8", "num_rounds=[6]", *HERE)
TIE = 1e-4


def untrained_gcn(folder: Path, **heads: Any) -> Path:
    """The run directory of a network that nobody trained."""
    shape = Architecture(default_model_settings("gcn", 2, 8), Schema.of_plain_graph(6), 3)
    return save_untrained(folder, shape, asdict(OutputHeads((1,), **heads)))


def scattered(num_nodes: int, num_parts: int) -> np.ndarray:
    return np.random.default_rng(num_parts).integers(num_parts, size=num_nodes)


def sparse_masks(num_nodes: int) -> dict[str, np.ndarray]:
    """Every second node is in no mask."""
    return {
        name: mask & (np.arange(num_nodes) % 2 == 0) for name, mask in thirds(num_nodes).items()
    }


def train_toy(folder: Path, *options: str) -> Path:
    """Put toy.npz, two partitions of it below parts/, and a training run in run/ into a folder."""
    save_npz(folder / "toy.npz", random_graph(), sparse_masks(40))
    settings = compose([*at(folder), "app=train", *options, *SMALL])
    partition_data.run(settings)
    train.run(settings, folder / "run")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without rounding: rounded, rows of other parts would differ."""
    weighted = ("class_weights=[1,5,2]", "stopping.metric=macro_f1")
    return train_toy(tmp_path_factory.mktemp("inference"), "exchange=fp32", *weighted)


def at(folder: Path) -> tuple[str, ...]:
    return (*DATA, f"dataset_file={folder}/toy.npz", f"partition_dir={folder}/parts")


def run_app(app: Any, place: Path, run_dir: Path, *arguments: str, model: str = "gcn") -> Any:
    """Apply app=evaluate or app=predict to the run of `place`; return what it describes."""
    name, file = app.__name__.rpartition(".")[2], "predictions.json"
    settings = [*at(place), f"app={name}", f"checkpoint_dir={place}/run", *HERE, *arguments]
    app.run(compose(settings, f"node_classification_{model}"), run_dir)
    return json.loads((run_dir / (file if app is predict else "evaluation.json")).read_text())


# --- the same partitions ----------


def test_evaluate_says_what_the_training_run_said(place: Path, tmp_path: Path) -> None:
    summary = json.loads((place / "run" / "summary.json").read_text())
    result = run_app(evaluate, place, tmp_path / "out", model="gat")
    for name in ("train", "val", "test"):
        assert result[name] == pytest.approx(summary[name], rel=1e-6)
    assert result["same_partitions"]
    assert result["nodes"] == {"train": 7, "val": 6, "test": 7, "all": 40}
    assert result["settings"]["model"]["name"] == "gcn"  # the checkpoint's, not the configuration's
    assert result["settings"]["hidden_dim"] == 8
    assert {"inference", "phase", "total"} == set(result["seconds"])


MODELS = {
    "gcn": ("model=gcn",),
    "gat": ("model=gat", "heads=2"),
    "pool": ("model=sage", "model.aggregator=pool"),
    "skips": (
        "model=sage",
        "model.self_weight=true",
        "model.input_skip=true",
        "classifiers=validation",
        "smoothing.steps=3",
        "smoothing.reach=computed",
        "smoothing.alphas=[0.3]",
    ),
    "hops": (
        "model=gat",
        "model.self_weight=true",
        "model.residual=true",
        "heads=2",
        "smoothing.steps=2",
        "smoothing.alphas=[0.3]",
        "smoothing.reach=hops",
    ),
}
CASES = [*MODELS.values(), *((*MODELS[name], "exchange=plain") for name in ("gcn", "skips"))]


@pytest.mark.parametrize("options", CASES, ids=" ".join)
def test_a_checkpoint_makes_the_logits_of_its_training_bit_for_bit(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Rows are rounded: other sums would be other numbers, so that the phases are the run's."""
    directory = write_partitions(
        tmp_path, random_graph(60, 240), sparse_masks(60), scattered(60, 3), 3
    )
    small = ("hidden_dim=8", "num_rounds=[4]", "num_partitions=3", "device=cpu")
    settings = train_settings(*small, *options)

    def train_network(comm: Communicator) -> np.ndarray:
        recorder = RoundRecorder()
        context, stages = worker_context(comm, directory, settings, log=recorder, run_dir=tmp_path)
        answer, logits = choose_heads(
            context, lazy.train(context, stages).logits, make_smoother(context)
        )
        if comm.rank == 0:
            shape = make_architecture(context.partition, settings, context.graph_info)
            about = {"multilabel": False, "partition_digest": directory.digest()}
            save_model(tmp_path / "checkpoint", shape, {**about, "answer": asdict(answer)})
        return logits.numpy()

    def apply_checkpoint(comm: Communicator) -> np.ndarray:
        partition, checkpoint = directory.read_part(comm.rank), open_checkpoint(tmp_path)
        stages = checkpoint.stages()
        context = make_inference_context(
            settings,
            checkpoint,
            partition,
            directory,
            comm,
            stages,
            use="evaluate",
            clock=Clock(),
        )
        return infer(context, stages, checkpoint.heads).logits.numpy()

    trained, again = (run_threads(3, work) for work in (train_network, apply_checkpoint))
    for rank, (trained_logits, logits_again) in enumerate(zip(trained, again, strict=True)):
        part = directory.read_part(rank)
        known = (part.train_mask | part.val_mask | part.test_mask).numpy()
        assert np.isfinite(trained_logits[known]).all()
        np.testing.assert_array_equal(logits_again[known], trained_logits[known])


# --- other partitions ----------


@pytest.mark.parametrize(("reach", "same"), [("hops", True), ("computed", False)])
def test_predictions_do_not_depend_on_the_split(tmp_path: Path, reach: str, same: bool) -> None:
    """Two splits and two assignments of one graph, exact rows: with reach=hops one answer."""
    run = load_run(untrained_gcn(tmp_path / "run", alpha=0.2, steps=2, reach=reach))
    first, second = (
        run.predict(
            write_partitions(tmp_path / name, random_graph(), masks, scattered(40, parts), parts)
        )
        for name, masks, parts in (("a", sparse_masks(40), 2), ("b", thirds(40), 3))
    )
    near = np.allclose(first.probabilities, second.probabilities, rtol=1e-5, atol=1e-6)
    assert near == same
    directory = find_partition_directory([tmp_path / "a" / "toy-random-vol-2"], 2)
    some = run.predict(directory, node_ids=[1030, 1003, 1003])
    assert some.ids.tolist() == [1030, 1003, 1003]
    np.testing.assert_allclose(some.probabilities, first.probabilities[[30, 3, 3]], atol=TIE)
    np.testing.assert_allclose(some.embeddings, first.embeddings[[30, 3, 3]], atol=TIE)


# --- a graph without labels ----------

TABLES = (
    *("dataset_name=file", "symmetrize=true", "num_partitions=2", "exchange=fp32"),
    "columns.ignore=[note]",
)
SPLIT = ("split=fraction", "split.train=0.5", "split.val=0.25", "split.test=0.25")


def write_tables(folder: Path, *, labels: bool, order: Sequence[int] = (0, 1, 2, 3, 4)) -> Path:
    """40 nodes with a number, a number with blanks, a category, a text, and labels or none."""
    rng = np.random.default_rng(4)
    ids = np.array([f"n{node:03}" for node in range(40)])
    edges = pd.DataFrame(ids[rng.integers(0, 40, (90, 2))], columns=["src", "dst"])
    columns = {
        "age": rng.integers(18, 90, 40),
        "income": np.where(rng.random(40) < 0.2, "", rng.integers(0, 9_000, 40).astype(str)),
        "country": rng.choice(["de", "fr", "it"], 40),
        "id": ids,
        "note": [f"what was said of {node}" for node in range(40)],
    }
    nodes = pd.DataFrame(columns).iloc[:, [*order]]
    if labels:
        nodes["label"] = rng.choice(["no", "yes"], 40)
    return write_files(folder, {"nodes.csv": nodes, "edges.csv": edges})


@pytest.fixture(scope="module")
def trained_on_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(tmp_path_factory.mktemp("tables"))
    write_tables(folder / "known", labels=True)
    settings = compose(
        [
            *(*TABLES, f"dataset_file={folder}/known", f"partition_dir={folder}/parts"),
            *(*SPLIT, *SMALL),
        ]
    )
    summary = train.run(settings, folder / "run")
    assert summary["features"][0] == "6 columns of each node"
    assert "nodes: left out: note, columns.ignore" in summary["features"]
    return folder


def predict_table(folder: Path, graph: Path, run_dir: Path, *arguments: str) -> pd.DataFrame:
    options = (f"dataset_file={graph}", f"partition_dir={run_dir}-parts", "num_partitions=2")
    where = ("app=predict", "dataset_name=file", f"checkpoint_dir={folder}/run", "exchange=fp32")
    predict.run(compose([*where, *options, "predict.format=npy", *HERE, *arguments]), run_dir)
    return read_table(run_dir / "predictions.npy")


def test_a_graph_without_labels_is_predicted_as_with_them(
    trained_on_tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without labels, masks and a split, its columns in another order.

    The text is left out as in training.
    """
    folder = trained_on_tables
    new = write_tables(tmp_path / "known", labels=False, order=(2, 3, 4, 1, 0))
    predictions = predict_table(folder, new, tmp_path / "out")
    assert "accuracy" not in capsys.readouterr().out  # no scores, no table of them
    parts = find_partition_directory([folder / "parts" / "known-random-vol-2"], 2)
    of_known_graph = load_run(folder / "run").predict(parts)
    assert predictions["id"].tolist() == list(of_known_graph.ids)
    probabilities = np.column_stack([predictions["p0"], predictions["p1"]])
    np.testing.assert_allclose(probabilities, of_known_graph.probabilities, rtol=1e-5)
    assert set(predictions["class"].tolist()) <= {"no", "yes"}
    assert set(predictions["known_class"]) == {-1}
    assert set(predictions["split"]) == {""}
    described = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert described["nodes"] == {"train": 0, "val": 0, "test": 0, "all": 40}
    assert described["class_names"] == ["no", "yes"]


def test_classes_that_are_numbered_otherwise_are_found_by_name(
    trained_on_tables: Path, tmp_path: Path
) -> None:
    """A class that was not trained comes first in the order of names."""
    new = Path(shutil.copytree(trained_on_tables / "known", tmp_path / "known"))
    rows = (new / "nodes.csv").read_text().splitlines()
    rows[1] = f"{rows[1].rpartition(',')[0]},ageless"
    (new / "nodes.csv").write_text("\n".join(rows))
    predictions = predict_table(trained_on_tables, new, tmp_path / "out", *SPLIT)
    (directory,) = (tmp_path / "out-parts").iterdir()
    assert find_partition_directory([directory], 2).class_names == ["ageless", "no", "yes"]
    (parts,) = (trained_on_tables / "parts").iterdir()
    of_known_graph = load_run(trained_on_tables / "run").predict(parts)
    assert predictions["class"].tolist() == of_known_graph.classes.tolist()
    scored = predictions[
        (predictions["split"] == "train") & (predictions["known_class"] != "ageless")
    ]
    described = json.loads((tmp_path / "out" / "predictions.json").read_text())
    right = (scored["class"] == scored["known_class"]).mean()
    assert described["train"]["accuracy"] == pytest.approx(right)


@pytest.mark.parametrize(
    ("here", "there", "labels", "scored"),
    [
        ([1, 2], [], [1, 2, -1], [True, True, False]),
        ([], [1, 2], [-1, 0, -1], [False, True, False]),
        ([], ["no", "yes"], [0, 1, -1], [True, True, False]),
    ],
)
def test_classes_without_names_are_those_of_their_numbers(
    tmp_path: Path, here: list[int], there: list[Any], labels: list[int], scored: list[bool]
) -> None:
    """A table without class 0 numbers its classes 1 and 2 otherwise than one that has it."""
    graph, masks = make_graph([(0, 1)], np.ones((3, 1)), [0, 1, -1]), thirds(3)
    masks["test_mask"] = np.array([True, True, False])
    part = write_partitions(tmp_path, graph, masks, [0, 0, 0], 1).read_part(0)
    shape = SimpleNamespace(num_classes=len(there) or 3)
    trained = SimpleNamespace(class_names=there, architecture=shape)
    renumbered = renumber_classes(part, SimpleNamespace(class_names=here), trained)
    assert renumbered.labels.tolist() == labels
    assert renumbered.test_mask.tolist() == scored


def test_a_graph_that_was_made_in_another_way_is_refused(
    trained_on_tables: Path, tmp_path: Path
) -> None:
    new = write_tables(tmp_path / "known", labels=False, order=(0, 1, 2, 3))
    for argument, words in (
        ("symmetrize=false", "symmetrize=False; the model of .* symmetrize=True"),
        ("features.scale=none", r"features \(nodes\) were encoded by .* features.spec="),
    ):
        parts = ["features.spec=null"] if argument.startswith("features") else []
        with pytest.raises(InputError, match=words):
            predict_table(trained_on_tables, new, tmp_path / argument[:8], argument, *parts)
    (new / "nodes.csv").write_text("id,age,country\nn000,3,de\n", encoding="utf-8")
    (new / "edges.csv").write_text("src,dst\nn000,n000\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"no column `income`, which the model was trained with"):
        predict_table(trained_on_tables, new, tmp_path / "gone")
    own = ("symmetrize=false", "features.spec=null")
    with pytest.raises(InputError, match=r"lacks `income` in nodes, columns on which the model"):
        predict_table(trained_on_tables, new, tmp_path / "own", *own)


WRONG_IDS = ([1003.7], [True], ["x"], [np.nan], [None], [1003, 2**63], [[1003], []], {1003: 1})


def test_what_is_no_id_is_refused(tmp_path: Path) -> None:
    run = load_run(untrained_gcn(tmp_path / "run"))
    directory = write_partitions(tmp_path, random_graph(), sparse_masks(40), scattered(40, 2), 2)
    for wrong in WRONG_IDS:
        with pytest.raises(InputError, match=r"^node_ids: .* is no id; .* integers below"):
            run.predict(directory, node_ids=wrong)  # type: ignore[arg-type]
    for same in (["1003"], [1003.0], np.array([1003], np.uint16), [np.int32(1003)]):
        assert run.predict(directory, node_ids=same).ids.tolist() == [1003]  # type: ignore[arg-type]


# --- the app ----------


def test_what_a_killed_prediction_left_is_removed(place: Path, tmp_path: Path) -> None:
    """Without the note that one was begun, predictions are another run's.

    With a result they are complete.
    """
    parts = tmp_path / "predictions"
    parts.mkdir()
    (parts / "part7.csv").write_text("")
    with pytest.raises(InputError, match="holds predictions of another run"):
        run_app(predict, place, tmp_path, "predict.format=csv")
    (tmp_path / ".predicting0").touch()
    run_app(predict, place, tmp_path, "predict.format=csv")
    assert not (parts / "part7.csv").exists()
    assert not (tmp_path / ".predicting0").exists()
    (tmp_path / ".predicting0").touch()
    with pytest.raises(InputError, match=r"holds predictions\.json of another run"):
        run_app(predict, place, tmp_path, "predict.format=csv")
    assert (tmp_path / "predictions.csv").is_file()


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the same as `place`, with a smoothed run whose rows had four bits."""
    return train_toy(tmp_path_factory.mktemp("rounded"), "smoothing.alphas=[0.3]")


@pytest.mark.parametrize(
    ("precision", "overrides"),
    [("fp32", ()), ("int8", ("predict.precision=auto",)), ("fp32", ("exchange=plain",))],
)
def test_rows_of_a_prediction_have_its_precision(
    rounded: Path, tmp_path: Path, precision: str, overrides: tuple[str, ...]
) -> None:
    counted = run_app(predict, rounded, tmp_path / "predicted", *overrides)
    assert counted["settings"]["exchange"]["precision"] == [precision] * 2


@pytest.mark.parametrize(("precision", "same"), [("fp32", True), ("auto", False)])
def test_partitions_change_predictions_from_rounded_rows_only(
    rounded: Path, tmp_path: Path, precision: str, same: bool
) -> None:
    run = load_run(rounded / "run", precision)
    first, second = (
        run.predict(
            write_partitions(tmp_path, random_graph(), thirds(40), scattered(40, parts), parts)
        )
        for parts in (1, 3)
    )
    np.testing.assert_allclose(first.probabilities, second.probabilities, atol=0.02)
    assert np.allclose(first.probabilities, second.probabilities, atol=1e-5) == same


def test_all_doors_give_the_same_predictions(rounded: Path, tmp_path: Path) -> None:
    """app=predict, and in Python a partition directory and the graph itself, of a run whose rows
    were rounded in training.
    """
    run_app(predict, rounded, tmp_path)
    table = read_table(tmp_path / "predictions.parquet")
    expected = np.stack([table[f"p{place}"] for place in range(3)], 1)
    directory, run = rounded / "parts" / "toy-random-vol-2", rounded / "run"
    attached = load(run, output="arrays").attach(str(rounded / "toy.npz"))
    for predictions in (
        load_run(run).predict(directory),
        load(run, output="arrays").predict(directory),
        attached.predict(),
    ):
        np.testing.assert_allclose(predictions.probabilities, expected, atol=1e-5)


@pytest.mark.parametrize("graph", ["parts/toy-random-vol-2", "toy.npz"])
def test_predictions_that_are_no_numbers_are_refused(rounded: Path, graph: str) -> None:
    model = load(rounded / "run")
    next(model.stages[-1].parameters()).data[:] = torch.inf
    with pytest.raises(InputError, match="some predictions are NaN or infinite"):
        model.predict(str(rounded / graph))


def test_an_unknown_precision_is_refused(rounded: Path) -> None:
    with pytest.raises(InputError, match=r"predict\.precision=int2: choose one of auto, trained"):
        load_run(rounded / "run", "int2")


@pytest.fixture(scope="module")
def written(place: Path) -> Path:
    """The run directory of a prediction with embeddings, as parquet."""
    result = run_app(predict, place, place / "predicted", "predict.embeddings=true")
    assert result["parts_missing"] == []
    assert result["bytes"]["by_kind"]["features"] > 0
    return place / "predicted"


def test_predict_writes_all_nodes_by_original_id(place: Path, written: Path) -> None:
    table, embeddings = (
        read_table(written / f"{name}.parquet") for name in ("predictions", "embeddings")
    )
    assert list(table) == ["id", "class", "p0", "p1", "p2", "known_class", "split"]
    width = 4  # the aggregate of hidden_dim=8, that the last layer reads
    assert list(embeddings) == ["id", *(f"e{place}" for place in range(width))]
    expected = load_run(place / "run").predict(place / "parts" / "toy-random-vol-2")
    assert table["id"].tolist() == embeddings["id"].tolist() == list(range(1000, 1040))
    assert table["class"].tolist() == expected.classes.tolist()
    probabilities = np.stack([table[f"p{place}"] for place in range(3)], 1)
    assert probabilities.dtype == np.float32
    np.testing.assert_array_equal(
        probabilities, expected.probabilities
    )  # one thread each: the same bits
    np.testing.assert_array_equal(
        np.stack([embeddings[f"e{place}"] for place in range(width)], 1), expected.embeddings
    )
    assert sorted(path.name for path in (written / "predictions").iterdir()) == [
        "part0.parquet",
        "part1.parquet",
    ]


@pytest.mark.parametrize("kind", ["names", "labels"])
def test_scores_are_computed_again_from_predictions(
    kind: str, trained_on_tables: Path, tmp_path: Path
) -> None:
    """scikit-learn computes the same scores from predictions.csv alone."""
    folder = trained_on_tables if kind == "names" else tmp_path
    file = f"dataset_file={folder}/known"
    data = (*TABLES, file, f"partition_dir={folder}/parts", "split=fraction")
    if kind == "labels":
        graph = random_graph(multi=True)
        graph.labels[::5, 1] = np.nan
        save_npz(folder / "toy.npz", graph, sparse_masks(40))
        data = at(folder)
        train.run(compose([*data, "app=train", "exchange=fp32", *SMALL]), folder / "run")
    asked = ("app=predict", f"checkpoint_dir={folder}/run", "predict.format=csv", *HERE)
    scores = predict.run(compose([*data, *asked]), tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "predictions.csv")
    for split in ("train", "val", "test"):
        rows = table[table["split"] == split]
        assert len(rows) == scores["nodes"][split]
        if kind == "labels":
            known = rows[[f"known_label{place}" for place in range(3)]].to_numpy()
            predicted = rows[[f"label{place}" for place in range(3)]].to_numpy()
            is_known = ~np.isnan(known)
            assert not is_known.all()
            score = metrics.f1_score(known[is_known], predicted[is_known])
        else:
            score = metrics.f1_score(rows["known_class"], rows["class"], average="micro")
        assert score == pytest.approx(scores[split]["micro_f1"])
    assert table["split"].isna().sum() == scores["nodes"]["all"] - table["split"].count()


# --- mistakes ----------


def damage_copy(place: Path, folder: Path, spoil: Callable[[Path], Any]) -> Path:
    """A copy of the run, spoilt."""
    shutil.copytree(place / "run", folder / "run")
    spoil(folder / "run" / "checkpoint")
    return folder / "run"


def swap_text(path: Path, one: str, other: str) -> None:
    path.write_text(path.read_text("utf-8").replace(one, other), "utf-8")


def not_a_number(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / "layer1.safetensors")
    next(iter(tensors.values())).view(-1)[0] = torch.nan
    save_file(tensors, checkpoint / "layer1.safetensors")
    checksums = {path.name: file_checksum(path) for path in checkpoint.glob("layer*.safetensors")}
    edit_model(checkpoint, lambda content: content.update(checksums=checksums))


DAMAGE: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "version": (
        lambda at: edit_model(at, lambda content: content.update(version=7)),
        ("model.json", "version 7"),
    ),
    "no json": (lambda at: (at / "model.json").write_text("{"), ("model.json",)),
    "a list": (lambda at: (at / "model.json").write_text("[1]"), ("model.json",)),
    "foreign": (
        lambda at: (at / "model.json").write_text('{"model": "bert"}'),
        ("model.json", "version"),
    ),
    "model": (
        lambda at: edit_model(at, lambda content: content["architecture"].update(name="gru")),
        ("model.json", "gru"),
    ),
    "changed": (
        lambda at: swap_text(at / "model.json", '"multilabel": false', '"multilabel": true'),
        ("model.json", "was changed since it was written"),
    ),
    "pipeline": (
        lambda at: edit_model(
            at, lambda content: content.update(features={"nodes": {"version": 2}})
        ),
        ("model.json", "feature pipeline has version 2"),
    ),
    "flipped": (
        lambda at: flip_bit(at / "layer1.safetensors", 0.9),
        ("layer1.safetensors", "checksum"),
    ),
    "missing": (
        lambda at: (at / "layer1.safetensors").unlink(),
        ("layer1.safetensors: missing", "not a complete checkpoint; copy all of it"),
    ),
    "nan": (not_a_number, ("layer1.safetensors", "NaN")),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_named(place: Path, tmp_path: Path, name: str) -> None:
    spoil, words = DAMAGE[name]
    with refusing(*words):
        load_run(damage_copy(place, tmp_path, spoil))


REFUSED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "model": (("model=gat",), ("model=gat", "model=gcn")),
    "width": (("hidden_dim=16",), ("hidden_dim=16", "hidden_dim=8")),
    "task": (("task=node_regression",), ("task=node_regression", "task=node_classification")),
    "layers": (("num_layers=3",), ("num_layers=3",)),
    "trainer": (("trainer=bns",), ("trainer=bns", "trainer=lazy")),
    "aggregator": (("model=sage", "model.aggregator=pool"), ("model=sage",)),
    "nothing there": (("checkpoint_dir=nowhere",), ("checkpoint_dir=nowhere", "app=train")),
    "two precisions": (
        ("exchange=fp32", "predict.precision=int8"),
        ("predict.precision=int8", "exchange sets"),
    ),
    "used": (("hydra.run.dir=predicted",), ("predicted", "another run")),
    "no checkpoint": (("checkpoint_dir=null",), ("checkpoint_dir",)),
    "format": (("predict.format=xlsx",), ("predict.format=xlsx", "parquet")),
    "no partitions": (
        ("partition_dir=elsewhere", "parts_per_node=1"),
        ("elsewhere", "app=partition_data"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_contradicts_the_run_is_refused(
    place: Path, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(place)
    arguments, words = REFUSED[name]
    run_dir = written if name == "used" else tmp_path
    overrides = [argument for argument in arguments if not argument.startswith("hydra")]
    with refusing(*words):
        predict.run(
            compose(["app=predict", *DATA, *HERE, "checkpoint_dir=run", *overrides]), run_dir
        )


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (random_graph(width=7), ("7 wide", "takes 6")),
        (random_graph(num_classes=5), ("5 classes", "has 3")),
        (random_graph(multi=True), ("multi-label", "one class per node")),
    ],
    ids=["features", "classes", "task"],
)
def test_a_graph_that_the_model_does_not_fit(
    place: Path, tmp_path: Path, graph: GraphData, words: tuple[str, ...]
) -> None:
    write_partitions(tmp_path / "parts", graph, thirds(40), scattered(40, 2), 2)
    settings = [*at(tmp_path), "app=evaluate", f"checkpoint_dir={place}/run", *HERE]
    with refusing(*words):
        evaluate.run(compose(settings), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_no_predictions_that_look_complete(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts are written, and then there is no space for the last file."""

    def rename(unfinished: Path, path: Path) -> None:
        if path.name == "predictions.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        unfinished.rename(path)

    monkeypatch.setattr(atomic_write, "rename_durably", rename)
    settings = [*at(place), "app=predict", f"checkpoint_dir={place}/run", *HERE]
    with pytest.raises(TrainingError, match=r"predictions\.json: cannot be written: No space left"):
        predict.run(
            compose([*settings, "predict.format=npy", "predict.embeddings=true"]), tmp_path / "run"
        )
    assert [path.name for path in (tmp_path / "run").iterdir()] == []
