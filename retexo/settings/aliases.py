"""Other names of settings, which users of other programs and scripts know.

An alias is accepted wherever a setting can stand: on the command line and in configuration files.
Only the current name is stored.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from partitioning.partition_settings import FeatureSettings

ALIASES: dict[str, str] = {
    "lr": "learning_rate",
    "patience": "stopping.patience",
    "class_weights": "task.class_weights",
    "hidden_channels": "hidden_dim",
    "num_heads": "heads",
    "num_parts": "num_partitions",
    "partition.from": "partition.source",
    "model.own_half": "model.self_weight",
    "features": "features.kind",
}
"""Dotted alias -> setting."""
_ROUNDS = (
    "num_rounds=[N] sets the most rounds of each layer; a round is a pass over all training nodes, "
    "or with batch_size one step"
)
_GPU = "device=cuda uses the GPUs of this machine; num_partitions is the number of workers"
_DATA = "dataset_name=NAME, or dataset_name=file dataset_file=PATH for data of your own"
_FOLDER = "hydra.run.dir=DIR is the folder of a run"
MEANT: dict[str, str] = {
    **dict.fromkeys(("epochs", "num_epochs", "max_epochs", "n_epochs", "iterations"), _ROUNDS),
    **dict.fromkeys(("gpus", "gpu", "cuda", "accelerator", "devices", "num_gpus"), _GPU),
    **dict.fromkeys(("data", "dataset", "root", "data_dir", "path"), _DATA),
    **dict.fromkeys(("out", "output", "output_dir", "save_dir", "log_dir"), _FOLDER),
    **dict.fromkeys(
        ("auc", "metric", "val_metric", "monitor", "eval_metric"),
        "stopping.metric=NAME chooses by a validation metric: roc_auc, macro_f1, accuracy ...",
    ),
    **dict.fromkeys(
        ("early_stopping", "early_stop"),
        "stopping.patience=N stops a layer after N rounds without progress; stopping=none never",
    ),
    **dict.fromkeys(
        ("num_workers", "workers", "world_size", "nproc"),
        "num_partitions=N: every partition has a worker; cluster.threads is the threads of each",
    ),
    **dict.fromkeys(("layers", "n_layers", "depth"), "did you mean num_layers?"),
    **dict.fromkeys(("hidden", "hidden_size", "units"), "did you mean hidden_dim?"),
    "lr_scheduler": "did you mean scheduler?",
    "scheduler.step_size": "did you mean scheduler_rounds?",
    "scheduler.gamma": "did you mean scheduler_factor?",
    "momentum": "+optimizer.momentum=VALUE, with optimizer._target_=torch.optim.SGD",
    "fanout": "trainer=sampled has sampled.fanout",
    "wandb": "logger=wandb",
    "mlflow": "logger=mlflow",
}
"""What users of other programs type -> the remedy of the refusal."""


def rename_override(override: str) -> str:
    """Replace an alias in an override of the command line: lr=0.1 is learning_rate=0.1."""
    name, equals, value = override.partition("=")
    bare = name.lstrip("+~")
    return f"{name.removesuffix(bare)}{ALIASES.get(bare, bare)}{equals}{value}"


def rename_settings(
    settings: Mapping[str, Any], given: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Replace the aliases in nested settings. An alias wins over the current name.

    Args:
        settings: Nested settings, as composed or as read from a file.
        given: Settings of the command line. They win over an alias in a configuration file.
    """
    renamed = _copy(settings)
    for alias, name in ALIASES.items():
        group, _, last = alias.rpartition(".")
        holder = renamed.get(group) if group else renamed
        if not isinstance(holder, dict) or last not in holder:
            continue
        if alias == "features" and _is_features_group(holder[last]):
            continue
        value = holder.pop(last)
        if name not in given:
            group, _, last = name.rpartition(".")
            target = renamed.setdefault(group, {}) if group else renamed
            target[last] = value
    return renamed


def _is_features_group(value: Any) -> bool:
    """Whether `features` holds the settings features.*; else it stands for features.kind."""
    names = {each.name for each in fields(FeatureSettings)}
    return isinstance(value, Mapping) and value.keys() <= names


def _copy(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The groups as new dictionaries, so that names can be replaced in them."""
    return {
        name: _copy(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
    }
