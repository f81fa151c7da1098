"""Files of --config-dir: they hold settings, and cannot make Hydra call functions or read without
end.
"""

import shutil
from pathlib import Path

import pytest
from support import run_main

from partitioning.errors import InputError
from retexo.settings.compose import compose
from retexo.settings.config_files import check_config_dir
from retexo.settings.schema import CONFIG_DIR

CALL = "{_target_: numpy.load, file: x.npy}"
LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 30)
)
REFUSED: dict[str, tuple[str, str]] = {
    "callback": (f"hydra: {{callbacks: {{a: {CALL}}}}}", "hydra.callbacks"),
    "by an alias": (f"x: &x {{callbacks: {{a: {CALL}}}}}\nhydra: *x", "hydra.callbacks"),
    "by a merge": (f"x: &x {{callbacks: {{a: {CALL}}}}}\nhydra: {{<<: *x}}", "hydra.callbacks"),
    "by an interpolation": (f"x: {{a: {CALL}}}\nhydra: ${{x}}", "hydra=${x}"),
    "by its package": (f"# @package hydra.callbacks\na: {CALL}", "package"),
    "by the defaults": ("defaults: [x@hydra.callbacks: y]", "x@hydra.callbacks"),
    "another folder": ("hydra: {searchpath: [file:///tmp]}", "hydra.searchpath"),
    "environment": ("hydra: {job: {env_set: {LD_PRELOAD: x.so}}}", "hydra.job.env_set"),
    "sweeper": (f"hydra: {{sweeper: {{sampler: {CALL}}}}}", "hydra.sweeper.sampler._target_"),
    "resolved later": ("hydra: {sweeper: {sampler: '${x}'}}", "hydra.sweeper.sampler=${x}"),
    "handler": (
        "hydra: {hydra_logging: {handlers: {a: {class: logging.handlers.SocketHandler}}}}",
        "hydra.hydra_logging.handlers.a.class=logging.handlers.SocketHandler",
    ),
    "factory": (
        "hydra: {job_logging: {handlers: {a: {'()': numpy.load, file: x}}}}",
        "hydra.job_logging.handlers.a.()",
    ),
    "file of a handler": (
        "hydra: {job_logging: {handlers: {a: {class: logging.FileHandler, filename: /x}}}}",
        "hydra.job_logging.handlers.a.filename",
    ),
    "aliases": (LAUGHS, "5,000 values"),
    "merged aliases": (LAUGHS.replace("[x, x]", "{x: 1}").replace(": &", ": &"), "5,000 values"),
    "in itself": ("a: &a [*a]", "nested more than 50 deep"),
    "nested": ("[" * 5_000, "cannot be read as YAML"),
    "large": ("a: 1\n" * 100_000, "200,000 bytes"),
    "no yaml": ("a: [1", "cannot be read as YAML"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_could_run_code_or_never_end_is_refused(tmp_path: Path, name: str) -> None:
    content, words = REFUSED[name]
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(InputError) as caught:
        compose([], "mine", str(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path}/mine.yaml: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_command_is_refused_before_hydra_reads_the_file(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    called = tmp_path / "called"
    handler = f"{{class: logging.FileHandler, filename: {called}}}"
    (tmp_path / "own" / "mine.yaml").write_text(
        "defaults: [node_classification]\n"
        f"hydra: {{hydra_logging: {{handlers: {{a: {handler}}}, root: {{handlers: [a]}}}}}}\n"
    )
    ended = run_main("-cd", "own", "app=report", "-cn", "mine", cwd=tmp_path)
    assert ended.rc == 2, ended.output
    assert "hydra.hydra_logging.handlers.a.filename" in ended.stderr
    assert not called.exists()


def test_a_file_in_the_place_of_hydras_own_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "hydra" / "callbacks" / "a.yaml"
    place.parent.mkdir(parents=True)
    place.write_text(f"a: {CALL}")
    with pytest.raises(InputError, match=r"a\.yaml: replaces configuration of Hydra itself"):
        check_config_dir(str(tmp_path))


def test_own_configurations_are_taken(tmp_path: Path) -> None:
    """A copy of the program's, a launcher that is installed, an alias."""
    (tmp_path / "copied.yaml").write_text((CONFIG_DIR / "node_classification.yaml").read_text())
    for group in ("experiment", "hparams_search"):
        shutil.copytree(CONFIG_DIR / group, tmp_path / group)
    (tmp_path / "mine.yaml").write_text(
        "defaults: [node_classification_sage, override hydra/launcher: basic, _self_]\n"
        "num_rounds: &rounds [7, 8]\nplan: {rounds: *rounds}\n"
        "hydra: {run: {dir: 'out/${now:%Y}'}, sweep: {dir: all}, launcher: {_target_: "
        "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher}}\n"
    )
    settings = compose(["seed=4"], "mine", str(tmp_path))
    assert (settings.train.num_rounds, settings.plan_rounds) == ((7, 8), (7, 8))
    assert compose([], "copied", str(tmp_path)).train.model.name == "gcn"
