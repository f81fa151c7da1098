"""Whatever a setting is set to: it is taken, or an InputError names it. Nothing else is raised, nothing hangs."""

import contextlib
import json
import math
import time
import traceback
from pathlib import Path
from typing import Any

import hydra
import pytest
import torch
from hydra.errors import HydraException
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from main import explain
from partitioning.errors import InputError
from retexo.apps.partition_data import directory_of, requested_settings
from retexo.apps.run_identity import settings_digest
from retexo.config.compose import compose, load
from retexo.config.schema import CONFIG_DIR
from retexo.config.settings import Settings

CONFIGS = tuple(sorted(path.stem for path in CONFIG_DIR.glob("*.yaml")))


def leaves(config: Any, prefix: str = "") -> list[str]:
    """Dotted names of all settings, groups as a whole among them."""
    names = []
    for key, value in config.items():
        names.append(f"{prefix}{key}")
        if isinstance(value, dict):
            names += leaves(value, f"{prefix}{key}.")
    return names


def composed(name: str) -> DictConfig:
    with hydra.initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        return hydra.compose(name)


BASES = {name: composed(name) for name in CONFIGS}
NAMES = sorted({name for base in BASES.values() for name in leaves(OmegaConf.to_container(base))})
OPTIONS = ("model.aggregator", "model.head_merge", "optimizer.momentum", "optimizer.lr", "no_such_setting", "split.sed")

integers = st.one_of(
    st.sampled_from([0, 1, 2, 3, -1, 1000, 2**31, 2**32, 2**63, 2**64, 10**9, 10**30]), st.integers(-10, 100_000)
)
floats = st.one_of(
    st.sampled_from([0.0, 0.5, 1.0, 1e-300, 1e9, 1e18, 1e300, math.nan, math.inf, -math.inf, -0.0]), st.floats()
)
words = st.one_of(
    st.sampled_from(["", "null", "true", "1", "1e3", "nan", "../x", "/", "a" * 300, "é", "a\nb", "???", "${seed}",
                     "${nowhere}", "${oc.env:NOWHERE}", "gcn", "gat", "local", "files", "fraction", "per_class", "file",
                     "km1", "powersgd", "bf16", "int8", "plain", "pool", "torch.optim.SGD", "os.system", "cora"]),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
)  # fmt: skip
scalars = st.one_of(st.none(), st.booleans(), integers, floats, words)
anything = st.one_of(
    scalars, st.lists(scalars, max_size=4), st.dictionaries(st.sampled_from(["a", "kind", "0"]), scalars, max_size=2)
)


def values_for(name: str) -> st.SearchStrategy[Any]:
    """Mostly values of the type that the setting has, often far out; sometimes anything."""
    defaults = [OmegaConf.select(base, name) for base in BASES.values()]
    default = next((value for value in defaults if value is not None), None)
    if isinstance(default, bool) or default is None or isinstance(default, DictConfig):
        return anything
    if isinstance(default, ListConfig):
        right: st.SearchStrategy[Any] = st.lists(integers if isinstance(default[0], int) else floats, max_size=4)
    else:
        right = {int: integers, float: floats}.get(type(default), words)
    return st.one_of(right, right, right, anything)


pairs = st.sampled_from([*NAMES, *OPTIONS]).flatmap(lambda name: st.tuples(st.just(name), values_for(name)))
changes = st.lists(pairs, min_size=1, max_size=3).map(dict)


def use(taken: Settings) -> None:
    """What every app does with settings before it looks at a file."""
    json.dumps(taken.resolved)
    settings_digest(taken)
    train = taken.train
    assert len(train.num_rounds) == len(train.learning_rate) == train.model.num_layers
    assert train.cluster.local_ranks
    torch.manual_seed(train.seed * 1_000_003 + train.cluster.local_ranks[-1])
    directory_of(taken.partition)
    requested_settings(taken.partition)


def taken_or_refused(config: DictConfig, given_names: list[str]) -> str | None:
    """The message of the refusal."""
    start = time.monotonic()
    try:
        use(load(config, given_names))
    except InputError as error:
        return str(error)
    except OSError as error:  # of a path; main.py names it
        return str(error.filename)
    finally:
        assert time.monotonic() - start < 10, "too long"
    return None


pytestmark = pytest.mark.timeout(600)  # seconds on a quiet machine; other work may have the cores
FUZZ = {
    "phases": (Phase.reuse, Phase.generate),  # an example is short already, and shrinking it takes long
    "suppress_health_check": [HealthCheck.too_slow],
}


@settings(max_examples=450, **FUZZ)
@given(name=st.sampled_from(CONFIGS), changed=changes)
def test_any_value_is_taken_or_refused(name: str, changed: dict[str, Any]) -> None:
    config = BASES[name].copy()
    OmegaConf.set_struct(config, False)
    for setting, value in changed.items():
        try:
            OmegaConf.update(config, setting, value, force_add=True, merge=False)
        except (OmegaConfBaseException, ValueError):  # it lies below what is no group any more
            return
    message = taken_or_refused(config, list(changed))
    if message is not None:
        words = {word for setting in changed for word in (setting.split(".")[0], setting.split(".")[-1])}
        assert [word for word in words if word in message], message


overrides = st.one_of(
    st.tuples(st.sampled_from([*NAMES, *OPTIONS]), words).map("=".join),
    st.tuples(st.sampled_from(["+", "++", "~"]), st.sampled_from(NAMES), words).map(lambda p: f"{p[0]}{p[1]}={p[2]}"),
    st.sampled_from(["~model", "+model=gat", "model=3", "num_rounds=[1", "a", "=", "=1", "num_rounds={a:1}"]),
    words,
)


@settings(max_examples=100, **FUZZ)
@given(given_overrides=st.lists(overrides, min_size=1, max_size=3))
def test_any_command_line_is_taken_or_refused(given_overrides: list[str]) -> None:
    """What main.py turns into status 2: the program's own refusals, and Hydra's."""
    try:
        taken = compose(given_overrides)
    except (InputError, HydraException, OmegaConfBaseException) as error:
        explain(error)
    except ValueError as error:  # Hydra has some of its own; main.py takes whatever fails before a job starts as such
        if "/hydra/" not in traceback.extract_tb(error.__traceback__)[-1].filename:
            raise
    else:
        with contextlib.suppress(InputError, OSError):
            use(taken)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("num_layers", 10**9), ("hidden_dim", 10**12), ("num_partitions", 10**12), ("seed", 2**63),
        ("partition.seed", 2**64), ("cluster.threads", 10**9), ("distributed.timeout", 1e300), ("sleep_time", 1e300),
        ("learning_rate", [1e300]), ("weight_decay", 1e300), ("synthetic.nodes", 10**30), ("num_rounds", "${seed}"),
        ("model", "${seed}"), ("plan.rounds", {"a": 1}), ("num_rounds", {"a": 1}), ("num_layers", "???"),
    ],
)  # fmt: skip
def test_what_the_fuzz_has_found_is_refused_by_name(setting: str, value: Any) -> None:
    config = BASES["node_classification"].copy()
    OmegaConf.update(config, setting, value, merge=False)
    message = taken_or_refused(config, [setting])
    assert message is not None
    assert message.startswith(setting.split(".")[0])


def test_a_folder_is_not_searched_for_its_checksum(tmp_path: Path) -> None:
    """A wrong dataset_file, the root folder for instance, would be read whole before it is refused."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "endless").symlink_to("/dev/zero")
    (tmp_path / "edges.csv").write_text("0,1")
    before = requested_settings(compose(["dataset_name=file", f"dataset_file={tmp_path}"]).partition)
    (tmp_path / "deep" / "more").write_text("x")
    assert requested_settings(compose(["dataset_name=file", f"dataset_file={tmp_path}"]).partition) == before
