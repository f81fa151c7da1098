"""Other names of settings and values, which users of other programs and scripts know.

They are replaced in the arguments of a command; configuration files have the current names.
"""

from typing import Any

ALIASES: dict[str, str] = {
    "lr": "learning_rate",
    "patience": "stopping.patience",
    "class_weights": "task.class_weights",
    "hidden_channels": "hidden_dim",
    "num_heads": "heads",
    "num_parts": "num_partitions",
    "plan.rounds": "num_rounds",
    "partition.from": "partition.source",
    "split.train_per_class": "split.train",
    "split.num_val": "split.val",
    "split.num_test": "split.test",
    "task.head": "task.scorer",
    "model.own_half": "model.self_weight",
    "features": "features.kind",
    "labels": "labels.kind",
    "model.name": "model",
    "output_heads": "classifiers",
    "task._target_": "task",
    "distributed.rejoin_timeout": "distributed.init_timeout",
    "remote.cache": "dataset_dir",
}
"""Alias -> the current name."""
VALUES: dict[str, str] = {
    "exchange.mode=exact": "selected",
    "exchange=exact": "fp32",
    "gradient=sync": "fp32",
    "task._target_=retexo.metrics.NodeClassification": "node_classification",
    "task._target_=retexo.metrics.NodeRegression": "node_regression",
    "task._target_=retexo.metrics.LinkPrediction": "link_prediction",
}
"""Setting and former value -> the current value."""
_ROUNDS = (
    "num_rounds=[N] sets the most rounds of each layer; a round is a pass over all training nodes, "
    "or with batch_size one step"
)
_GPU = "device=cuda uses the GPUs of this machine; num_partitions is the number of workers"
_DATA = "dataset_name=NAME, or dataset_name=file dataset_file=PATH for data of your own"
_HALVED = (
    "scheduler=step halves the learning rate every 50 rounds, plateau after 5 without improvement"
)
_FOLDER = "hydra.run.dir=DIR is the folder of a run"
REMOVED: dict[str, tuple[Any, str]] = {
    "features.max_categories": (64, "64 categories have a column each, rarer ones share one"),
    "histogram_bins": (512, "scores are counted in 512 bins"),
    "labels.of": ("nodes", "task=edge_classification and edge_regression read labels of edges"),
    "max_grad_norm": (None, "the gradient is not clipped; lower learning_rate"),
    "model.num_bases": (8, "more than 8 relations with the same source type share 8 bases"),
    "sampled.trainers": (1, "a partition has one trainer; more partitions have more"),
    "scheduler_factor": (0.5, _HALVED),
    "scheduler_rounds": (None, _HALVED),
    "serve.reload": (2.0, "a new checkpoint is loaded within 2 seconds"),
    "serve.timeout": (10.0, "a request has 10 seconds"),
    "stopping.hidden_patience": (None, "stopping.patience holds for all layers"),
    "task.dim": (64, "links have embeddings of 64 columns"),
    "task.label_smoothing": (0.0, "the loss has no label smoothing"),
    "task.paths": (True, "validation chooses the weight of common neighbours, which may be 0"),
    "temperature": ("auto", "validation calibrates the probabilities"),
    "update.again": (False, "a change whose rows are in another order can be applied once more"),
}
"""Former setting -> the value that the program has had since, and the remedy of the refusal."""
_AMBIGUOUS = (".of", ".timeout")
"""Ends of names that alone may mean another setting."""
MEANT: dict[str, str] = {
    **{
        name.rpartition(".")[2]: remedy
        for name, (_, remedy) in REMOVED.items()
        if not name.endswith(_AMBIGUOUS)
    },
    **{name: remedy for name, (_, remedy) in REMOVED.items()},
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
    "scheduler.step_size": _HALVED,
    "scheduler.gamma": _HALVED,
    "momentum": "+optimizer.momentum=VALUE, with optimizer._target_=torch.optim.SGD",
    "fanout": "trainer=sampled has sampled.fanout",
    "model.output": "the weighted aggregate with model.input_skip=true, else the activation",
    "split.stratify": "split=stratified draws the same shares of each class",
    "task.neighbour_dropout": "links train with it unless dropout=0",
    "verify": "app=partition_data checks the files of a directory that is there",
    "wandb": "logger=wandb",
    "mlflow": "logger=mlflow",
}
"""What users of other programs type -> the remedy of the refusal."""


def rename_override(override: str) -> str:
    """Replace aliases in an override of the command line, in each value of a sweep, too.

    lr=0.1 is learning_rate=0.1, and lr=1,2 is learning_rate=1,2.
    """
    name, equals, value = override.partition("=")
    bare = name.lstrip("+~")
    sign = name.removesuffix(bare)
    values = [VALUES.get(f"{bare}={word}", word) for word in value.split(",")]
    return f"{sign}{ALIASES.get(bare, bare)}{equals}{','.join(values)}"
