"""Every check of a setting: what is wrong is named, with its value and a remedy.

Files of --config-dir hold settings alone; ranks come from the environment of torchrun and Slurm.
"""

import shutil
from operator import attrgetter
from pathlib import Path

import pytest
import yaml
from support import need_dgl, refusing, run_main

from partitioning.errors import InputError
from retexo.settings.compose import compose, load_settings
from retexo.settings.config_files import check_config_dir
from retexo.settings.flatten import flatten
from retexo.settings.launcher_env import detect, expand_counts, first_host
from retexo.settings.run_settings import Settings
from retexo.settings.schema import CONFIG_DIR
from retexo.trainers import registry
from retexo.trainers.registry import TRAINERS


def refused(*overrides: str, config: str = "node_classification") -> str:
    """The message for settings that are refused, by themselves or by their trainer."""
    with pytest.raises(Exception, match=r".") as error:
        registry.check_trainer_settings(compose(overrides, config))
    assert not isinstance(error.value, AssertionError | TypeError | AttributeError | KeyError)
    return str(error.value)


def test_every_method_loads() -> None:
    for file in (CONFIG_DIR / "method").glob("*.yaml"):
        train = compose([f"+method={file.stem}"])
        trainer = file.stem.removesuffix("_lean")
        is_lazy = trainer in ("lean", "exact", "plain", "local_steps")
        assert train.trainer.name == ("lazy" if is_lazy else trainer)
        assert ("powersgd" in train.gradient.compression) == file.stem.endswith(
            ("lean", "local_steps")
        )


LINKS = "link_prediction_gcn"
GAT = "node_classification_gat"
FULL = {"exchange": "fp32", "gradient": "fp32", "compression": "none"}
ROUNDED = {"exchange": "int4", "gradient": "int6", "compression": "powersgd"}


@pytest.mark.parametrize(
    ("overrides", "config", "precisions"),
    [
        ((), "node_classification_gcn", ROUNDED),
        (("network=wan",), "node_classification_gcn", ROUNDED),
        (("network=lan",), "node_classification_gcn", FULL),
        (("+experiment=fast",), "node_classification_gcn", FULL),
        (("network=lan",), LINKS, FULL),
        (("network=lan", "exchange.precision=int8"), LINKS, FULL | {"exchange": "int8"}),
        (("network=lan", "+experiment=lean"), "node_classification_gcn", ROUNDED),
        (("exchange.mode=plain",), "node_classification_gcn", ROUNDED | {"exchange": "fp32"}),
    ],
)
def test_network_decides_what_nothing_else_sets(
    overrides: tuple[str, ...], config: str, precisions: dict[str, str]
) -> None:
    stored = flatten(compose(overrides, config).stored)
    assert stored["exchange.precision"] == [precisions["exchange"]] * 2
    assert stored["gradient.precision"] == precisions["gradient"]
    assert stored["gradient.compression"] == precisions["compression"]


@pytest.mark.parametrize(
    ("overrides", "config", "values"),
    [
        *(
            ((), f"node_classification_{name}", {"model.name": name})
            for name in ("gcn", "sage", "gat", "gin")
        ),
        # Seeds follow the seed.
        (("seed=7",), LINKS, {"split.seed": 7, "synthetic.seed": 7, "partition.seed": 7}),
        (("seed=7", "split.seed=1"), LINKS, {"split.seed": 1}),
        # Links have defaults of their own, in place of which a chosen group counts.
        ((), LINKS, {"gradient.compression": "none", "gradient.precision": "int8"}),
        ((), LINKS, {"stopping.patience": 40}),
        (("gradient=fp32",), LINKS, {"gradient.precision": "fp32"}),
        (("stopping=none",), LINKS, {"stopping.patience": None}),
        # Of GAT as published, lazy training alone leaves the node out of its own sum.
        (
            ("+experiment=retexo",),
            GAT,
            {"dropout": 0.3, "model.head_merge": "mean", "model.self_loops": False},
        ),
        (
            ("trainer=bns",),
            GAT,
            {"dropout": 0.3, "model.head_merge": "mean", "model.self_loops": True},
        ),
        (("+experiment=retexo", "model.self_loops=true"), GAT, {"model.self_loops": True}),
        # Regression has defaults of its own, and some by model.
        *(
            (
                ("task=node_regression",),
                f"node_classification_{name}",
                {"model.norm": "none", "dropout": 0.0, "model.self_weight": own_weight},
            )
            for name, own_weight in (("sage", False), ("gcn", True), ("rgcn", True))
        ),
        (
            ("task=node_regression", "model.self_weight=true"),
            "node_classification_sage",
            {"model.self_weight": True},
        ),
    ],
)
def test_what_is_not_given_follows_from_what_is(
    overrides: tuple[str, ...], config: str, values: dict[str, object]
) -> None:
    stored = flatten(compose(overrides, config).stored)
    assert {name: stored[name] for name in values} == values


def test_what_was_given_is_known() -> None:
    settings: Settings = compose(["split.seed=3", "+optimizer.eps=1e-5", "model=sage"])
    assert settings.given == {"split.seed", "optimizer.eps", "model"}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("num_rounds=[-1]", ["num_rounds=-1", "at least 0"]),
        ("network=100Mbit", ["network=100Mbit: ", "wan, lan"]),
        ("exchange.precision=[auto,int8]", ["exchange.precision=['auto', 'int8']", "each layer"]),
        ("num_rounds=[]", ["num_rounds=[]", "at least one"]),
        ("num_rounds=[[1]]", ["num_rounds=[[1]]", "an integer"]),
        ("learning_rate=[-0.1]", ["learning_rate=-0.1"]),
        ("learning_rate=[nan]", ["learning_rate=nan"]),
        ("num_layers=0", ["num_layers=0", "in [1, 254]", "auto"]),
        ("num_rounds=[99999999999999999999]", ["num_rounds=99999999999999999999"]),
        ("optimizer._target_=torch.optim.Muon", ["torch.optim.Muon", "torch.optim.SGD"]),
        ("hidden_dim=many", ["hidden_dim", "many"]),
        ("dropout=1", ["dropout=1"]),
        ("best_val_model=maybe", ["best_val_model", "maybe"]),
        ("local_epochs=3", ["local_epochs=3", "gradient=local"]),
        ("device=tpu", ["device=tpu", "auto, cpu, cuda"]),
        ("distributed.backend=nccl", ["distributed.backend=nccl", "gloo"]),
        ("distributed.master_port=65536", ["distributed.master_port=65536"]),
        ("node_rank=1", ["node_rank=1", "parts_per_node"]),
        ("num_partitions=5 parts_per_node=2 node_rank=3", ["node_rank=3", "[0, 3)"]),
        ("app=fly", ["app=fly", "train"]),
        ("task._target_=os.system", ["task=os.system", "node_classification"]),
        ("partition_method=chance", ["partition_method=chance", "random, metis"]),
        ("partition_method=file", ["partition_file"]),
        ("split.kind=any", ["split=any", "per_class"]),
        ("split.test={a:1}", ["split.test=", "a share in [0, 1]"]),
        ("synthetic.homophily=1.5", ["synthetic.homophily=1.5"]),
        ("num_rounds=true", ["num_rounds=True", "an integer"]),
        ("num_rounds=null", ["num_rounds=None", "an integer"]),
        ("num_rounds={a:1}", ["num_rounds: ", "list of int"]),
        ("seeds=[1.5]", ["seeds=[1.5]", "an integer"]),
        ("dropout=nan", ["dropout=nan", "[0, 1)"]),
        ("hidden_dim=1e400", ["hidden_dim: ", "'inf'", "int, 1 to 1,000,000"]),
        ("seed=null", ["seed: ", "int"]),
        ("threshold=[1]", ["threshold: Value '[1]'", "between 0 and 1, or auto"]),
        ("split.train=[1]", ["split.train=[1]", "a share in [0, 1]"]),
        ("features=[]", ["features.kind=[]", "at least one"]),
        ("features={a:[given,cat]}", ["features.kind=cat", "given, degree"]),
        ("logger=[a]", ["logger=a", "tensorboard, mlflow"]),
        ("learning_rate=${nope}", ["learning_rate: ", "'nope' not found", "list of float"]),
        ("hidden_dim=${device}", ["hidden_dim: ", "${device}", "int, 1 to 1,000,000"]),
        ("network=w\u00e4n", ["network=w\u00e4n", "write 'network="]),
        ("split=any", ["split=any", "per_class"]),
        ("model=sag", ["model=sag", "gat, gcn"]),
        ("bns.p=0.3", ["bns.p: trainer=bns"]),
        ("+_target_=os.system", ["_target_=os.system", "leave it out"]),
        ("+model._target_=os.system", ["model._target_=os.system", "leave it out"]),
        ("+optimizer.betas={_target_:os.system}", ["optimizer.betas._target_=os.system"]),
        ("features={_target_:os.system}", ["features.kind._target_=os.system"]),
        *(
            (f"{name}={value}", [name])
            for name, value in {
                "num_layers": 10**9,
                "seed": 2**63,
                "distributed.timeout": 1e300,
                "learning_rate": "[1e300]",
                "synthetic.nodes": 10**30,
                "num_rounds": "${device}",
            }.items()
        ),
        *(
            (f"parts_per_node=2 {address}", [address.replace("'", ""), "an IPv4 address or a host"])
            for address in (
                "distributed.master_addr='::1'",
                "distributed.master_addr='[fe80::1%eth0]'",
                "distributed.hub='[::1]:7000'",
                "distributed.hub='::1:7000'",
            )
        ),
        ("plan.rounds=[-1]", ["num_rounds=-1", "at least 0"]),
        ("class_weights=heavy", ["task.class_weights=heavy"]),
        ("class_weights=[1,-2]", ["task.class_weights"]),
        ("class_weights=[balanced,1]", ["task.class_weights"]),
        ("seeds=[1,1]", ["seeds=[1, 1]"]),
        ("seeds=[]", ["seeds=[]"]),
        ("stopping=[]", ["stopping=[]: takes one choice"]),
        ("labels.unknown={a:1}", ["labels.unknown={'a': 1}: must be"]),
        ("hidden_dim=${nothing}", ["hidden_dim: ", "'nothing' not found; it takes int"]),
        ("dropout=${dropout}", ["dropout: ", "ecursive interpolation", "[0, 1)"]),
        ("seeds=[1] seed=2", ["seed is set, too"]),
        ("seeds=[1] app=plan", ["only app=train"]),
        ("seeds=[1] resume=there", ["resume=there"]),
        ("threshold=1.5", ["threshold=1.5"]),
        ("threshold=half", ["threshold=half"]),
        ("stopping.metric=auc", ["stopping.metric=auc"]),
        ("columns=x", ["columns=x: is a group of settings; write columns.id=VALUE"]),
        (
            "distributed=[1]",
            ["distributed=[1]: is a group of settings; write distributed.backend="],
        ),
        ("synthetic=null", ["synthetic=null: is a group of settings; write synthetic.nodes=VALUE"]),
        ("=5", ["not a setting; write NAME=VALUE"]),
        ("+=5", ["not a setting; write NAME=VALUE"]),
        ("~", ["not a setting; write NAME=VALUE"]),
        ("app train", ["app: write app=VALUE"]),
        ("model", ["model: write model=VALUE"]),
        # An unknown name gets the nearest one, or those of its group.
        ("+num_round=1", ["num_round", "did you mean num_rounds?"]),
        ("+hiden_dim=1", ["hiden_dim", "did you mean hidden_dim?"]),
        ("+distributed.master_adr=1", ["master_adr", "did you mean distributed.master_addr?"]),
        ("+master_adr=1", ["master_adr", "did you mean distributed.master_addr?"]),
        ("+stopping.patiense=1", ["stopping.patiense", "did you mean stopping.patience?"]),
        ("+sede=1", ["sede", "did you mean seed?"]),
        ("+split.sed=1", ["split.sed", "did you mean split.seed?"]),
        ("+distributed.num_partitions=1", ["did you mean num_partitions?"]),
        ("+distributed.parts_per_node=1", ["did you mean parts_per_node?"]),
        ("+distributed.size=2", ["distributed.size: no such setting; distributed has "]),
        ("objective=val.auc", ["objective=val.auc", "roc_auc"]),
        ("objective=accuracy", ["objective=accuracy", "val.NAME"]),
        ("objective=value", ["objective=value", "bytes.total"]),
        # What users of other programs type leads to the setting.
        ("+epochs=5", ["num_rounds=[N]"]),
        ("+auc=true", ["stopping.metric"]),
        ("+gpus=2", ["device=cuda"]),
        ("+dataset=cora", ["dataset_name=NAME"]),
        ("scheduler.step_size=3", ["every 50 rounds"]),
        ("label_smoothing=0.1", ["label_smoothing: no such setting; the loss has no label"]),
        ("num_bases=4", ["num_bases: no such setting; more than 8 relations"]),
        ("scheduler=StepLR", ["none, cosine, plateau, step"]),
        ("optimizer=adam", ["optimizer._target_=torch.optim."]),
        ("class_weights=true", ["task.class_weights=True: must be"]),
        ("class_weights=2", ["task.class_weights=2: must be"]),
        *(
            (f"optimizer._target_='{target}'", ["must be a class of torch.optim"])
            for target in ("os.system", "torch.optim.Optimizer", "torch.optim.Adm", "Adam", "")
        ),
        # An optimizer's arguments.
        ("+optimizer.momentum=0.9", ["optimizer.momentum", "torch.optim.Adam", "betas"]),
        ("+optimizer.lr=0.1", ["optimizer.lr", "learning_rate"]),
        ("+optimizer.weight_decay=0.1", ["optimizer.weight_decay", "weight_decay"]),
        ("+optimizer.params=[]", ["optimizer.params"]),
        ("optimizer._target_=torch.optim.SGD +optimizer.momentum=-1", ["momentum"]),
        ("optimizer._target_=torch.optim.SGD +optimizer.momentum=big", ["momentum"]),
        ("+optimizer.betas=[2,2]", ["beta"]),
        ("optimizer._target_=torch.optim.Rprop", ["weight_decay=0.0005"]),
        ("optimizer._target_=torch.optim.LBFGS weight_decay=0", ["LBFGS"]),  # needs a closure
        # Needs sparse gradients.
        ("optimizer._target_=torch.optim.SparseAdam weight_decay=0", ["SparseAdam"]),
        # Of one model only.
        ("model.name=gru", ["model=gru", "gat, gcn, gin, hetero_sage"]),
        ("model=gcn +model.aggregator=pool", ["model.aggregator", "only model=sage"]),
        ("model=sage +model.head_merge=mean", ["model.head_merge", "only model=gat"]),
        ("model=sage ~model.aggregator", ["model.aggregator"]),
        ("model=sage model.aggregator=lstm", ["model.aggregator=lstm", "mean, pool"]),
        ("model=gat model.head_merge=max", ["model.head_merge=max", "mean, concat"]),
        ("model=gat model.head_merge=[1]", ["model.head_merge"]),
        ("model=gat hidden_dim=10 heads=4", ["hidden_dim=10", "heads=4"]),
        ("model.norm=batch", ["model.norm=batch", "layer, none"]),
        ("model.input_dropout=1", ["model.input_dropout=1.0", "[0, 1)"]),
        # Of one trainer or task only.
        ("num_layers=auto trainer=sign", ["trainer=sign trains all layers"]),
        ("num_layers=auto classifiers=last", ["classifiers=last"]),
        ("num_layers=auto model.input_skip=false model.self_weight=false", ["has no head"]),
        ("model.lookahead=1 trainer=bns", ["only with lazy; leave it out"]),
        ("model.residual=true model.self_weight=false", ["set model.self_weight=true"]),
        ("model.residual=true trainer=sign", ["only with lazy, full_graph"]),
        ("stopping.metric=ndcg@20", ["stopping.metric=ndcg@20: ", "only for task=link_prediction"]),
        ("task=node_regression task.loss=focal", ["choose mse, mae or huber"]),
        ("task.loss=mae", ["task.loss=mae: only for task=node_regression"]),
        ("task=node_regression stopping.metric=roc_auc", ["validated by its loss"]),
        ("task=node_regression class_weights=balanced", ["task.class_weights=balanced: for"]),
        ("task=node_regression threshold=0.3", ["threshold=0.3: for classes alone"]),
    ],
)
def test_a_wrong_value_is_named(override: str, words: list[str]) -> None:
    message = refused(*override.split())
    assert [word for word in words if word not in message] == [], message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("config", "overrides", "words"),
    [
        ("link_prediction_gcn", "num_layers=auto", "give a number of layers"),
        ("link_prediction_gcn", "model.lookahead=1", "trains each layer alone"),
        ("link_prediction_gcn", "stopping.metric=roc_auc", "not for task=link_prediction"),
        ("node_classification_gat", "model.lookahead=1", "choose model=sage, gcn or gin"),
        ("node_classification_rgcn", "model.lookahead=1", "on a heterogeneous graph"),
        ("node_classification_rgcn", "model.residual=true", "on a heterogeneous graph"),
        ("node_classification_hetero_sage", "task.head=dot", "task.scorer=dot: only for links"),
        ("edge_regression", "task.head=dot trainer=sign", "trainer=sign has an MLP of its own"),
    ],
)
def test_what_a_configuration_does_not_have_is_named(
    config: str, overrides: str, words: str
) -> None:
    assert words in refused(*overrides.split(), config=config)


def test_batches_of_the_sampled_trainer_have_a_size() -> None:
    need_dgl()
    sampled = ("trainer=sampled", "model=sage")
    registry.check_trainer_settings(compose([*sampled, "batch_size=9"]))
    assert refused(*sampled, "batch_size=auto").startswith("batch_size=auto: ")


@pytest.mark.parametrize(
    ("given", "layers", "wanted"),
    [
        ("[5,6,7]", 2, (5, 6)),
        ("[5,6,7]", 3, (5, 6, 7)),
        ("[5,6]", 4, (5, 6, 6, 6)),
        ("[5]", 3, (5, 5, 5)),
    ],
)
def test_lists_per_layer(given: str, layers: int, wanted: tuple[int, ...]) -> None:
    settings = compose([f"num_rounds={given}", f"learning_rate={given}", f"num_layers={layers}"])
    assert settings.num_rounds == wanted
    assert settings.learning_rate == wanted


@pytest.mark.parametrize(
    ("parts", "per_node", "node", "ranks"),
    [
        (4, "null", 0, [0, 1, 2, 3]),
        (4, 2, 1, [2, 3]),
        (5, 2, 2, [4]),
        (3, 8, 0, [0, 1, 2]),
        (1, 1, 0, [0]),
    ],
)
def test_ranks_of_a_node(parts: int, per_node: object, node: int, ranks: list[int]) -> None:
    settings = compose(
        [f"num_partitions={parts}", f"parts_per_node={per_node}", f"node_rank={node}"]
    )
    assert list(settings.local_ranks) == ranks


PUBLISHED = {
    "model.self_weight": False,
    "model.input_skip": False,
    "model.input_dropout": 0.6,
    "dropout": 0.6,
    "classifiers": "last",
    "smoothing.steps": 0,
    "batch_size": None,
    "compute.precision": "fp32",
    "learning_rate": [0.003] * 2,
    "num_rounds": [200] * 2,
    "stopping.patience": 30,
    "local_epochs": 1,
    "gradient.mode": "sync",
    "gradient.precision": "fp32",
    "gradient.compression": "none",
    "gradient.rank": 4,
    "exchange.precision": ["fp32"] * 2,
}


@pytest.mark.parametrize(
    "choice", ["+experiment=retexo", *(f"trainer={name}" for name in TRAINERS if name != "lazy")]
)
def test_published_settings_of_other_trainers(choice: str) -> None:
    """All are named by base/published.yaml, so that none follows a default."""
    if choice == "trainer=sampled":
        need_dgl()
    train = compose([choice], "node_classification_gcn")
    registry.check_trainer_settings(train)
    stored = flatten(train.stored)
    published = PUBLISHED | ({"batch_size": 1024} if choice == "trainer=sampled" else {})
    assert {name: stored[name] for name in PUBLISHED} == published
    named = flatten(yaml.safe_load((CONFIG_DIR / "base/published.yaml").read_text()))
    assert {*named, "gradient.mode"} == {*PUBLISHED}


@pytest.mark.parametrize(
    "override",
    [
        "model.self_weight=True",
        "model.input_skip=True",
        "batch_size=9",
        "compute.precision=bf16",
    ],
)
def test_what_only_lazy_training_has(override: str) -> None:
    registry.check_trainer_settings(compose([override]))
    skips = ("model.self_weight=True", "model.input_skip=True")  # which full_graph has, too
    for more in ("trainer=sign",) if override in skips else ("trainer=full_graph", "trainer=sign"):
        with pytest.raises(
            InputError, match=f"^{override}: not with {more}, only with lazy.*; leave it out"
        ):
            registry.check_trainer_settings(compose([override, more]))


CALL = "{_target_: numpy.load, file: x.npy}"
REFUSED: dict[str, tuple[str, str]] = {
    "callback": (f"hydra: {{callbacks: {{a: {CALL}}}}}", "hydra.callbacks"),
    "by an alias": (f"x: &x {{callbacks: {{a: {CALL}}}}}\nhydra: *x", "hydra.callbacks"),
    "by a merge": (f"x: &x {{callbacks: {{a: {CALL}}}}}\nhydra: {{<<: *x}}", "hydra.callbacks"),
    "by an interpolation": (f"x: {{a: {CALL}}}\nhydra: ${{x}}", "hydra=${x}"),
    "by its package": (f"# @package hydra.callbacks\na: {CALL}", "package"),
    "in another line": (f"# x\u2028# @package hydra.callbacks\na: {CALL}", "package"),
    "by the defaults": ("defaults: [x@hydra.callbacks: y]", "x@hydra.callbacks"),
    "by a path": ("defaults: [override hydra/launcher: ../../x]", "hydra/launcher=../../x"),
    "another folder": ("hydra: {searchpath: [file:///tmp]}", "hydra.searchpath"),
    "environment": ("hydra: {job: {env_set: {LD_PRELOAD: x.so}}}", "hydra.job.env_set"),
    "sweeper": (f"hydra: {{sweeper: {{sampler: {CALL}}}}}", "hydra.sweeper.sampler._target_"),
    "in a list": (f"hydra: {{launcher: {{a: [{CALL}]}}}}", "hydra.launcher.a=[{'_target_'"),
    "search space": ("hydra: {sweeper: {custom_search_space: a.b}}", "custom_search_space=a.b"),
    "resolved later": ("hydra: {sweeper: {sampler: '${x}'}}", "hydra.sweeper.sampler=${x}"),
    "handler": (
        "hydra: {hydra_logging: {handlers: {a: {class: logging.handlers.SocketHandler}}}}",
        "hydra.hydra_logging.handlers.a.class=logging.handlers.SocketHandler",
    ),
    "in itself": ("hydra: &a {run: *a}", "cannot be read as YAML: Circular reference"),
    "nested": ("[" * 5_000, "cannot be read as YAML"),
    "large": ("a: 1\n" * 100_000, "larger than 200,000 bytes"),
    "no yaml": ("a: [1", "cannot be read as YAML"),
    "no Unicode": (r'dataset_dir: "\ud800"', "cannot be read as YAML"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_could_run_code_or_is_no_yaml_is_refused(tmp_path: Path, name: str) -> None:
    content, words = REFUSED[name]
    (tmp_path / "mine.yaml").write_text(content)
    with refusing(words, begins=f"{tmp_path}/mine.yaml: "):
        compose([], "mine", str(tmp_path))


def test_a_command_is_refused_before_hydra_reads_the_file(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    called = tmp_path / "called"
    handler = f"{{class: logging.FileHandler, filename: {called}}}"
    (tmp_path / "own" / "mine.yaml").write_text(
        "defaults: [node_classification]\n"
        f"hydra: {{hydra_logging: {{handlers: {{a: {handler}}}, root: {{handlers: [a]}}}}}}\n"
    )
    ended = run_main("-cd", "own", "app=report", "-cn", "mine", cwd=tmp_path, rc=2)
    assert "hydra.hydra_logging.handlers.a.class" in ended.stderr
    assert not called.exists()


def test_a_file_in_the_place_of_hydras_own_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "hydra" / "callbacks" / "a.yaml"
    place.parent.mkdir(parents=True)
    place.write_text(f"a: {CALL}")
    with pytest.raises(InputError, match=r"a\.yaml: replaces configuration of Hydra itself"):
        check_config_dir(str(tmp_path))


def test_own_configurations_are_taken(tmp_path: Path) -> None:
    """Copies of the program's, a launcher and a sampler that are installed, an alias."""
    for group in ("experiment", "hparams_search"):
        shutil.copytree(CONFIG_DIR / group, tmp_path / group)
    (tmp_path / "mine.yaml").write_text(
        "defaults:\n"
        "  - node_classification_sage\n"
        "  - override hydra/launcher: joblib\n"
        "  - override hydra/sweeper: optuna\n"
        "  - override hydra/sweeper/sampler: random\n"
        "  - _self_\n"
        "num_rounds: &rounds [7, 8]\nseeds: *rounds\n"
        "hydra: {run: {dir: 'out/${now:%Y}'}, sweep: {dir: all}, launcher: {n_jobs: 2},\n"
        "        sweeper: {sampler: {seed: 1}, params: {+method: 'lean,exact'}}, mode: RUN}\n"
    )
    settings = compose([], "mine", str(tmp_path))
    assert (settings.num_rounds, settings.seeds) == ((7, 8), (7, 8))


def test_a_value_of_a_group_in_a_file_is_answered_with_its_first_setting(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [node_classification, _self_]\nfeatures: degree")
    with pytest.raises(InputError, match=r"^features=degree: is a .* features: {kind: degree}$"):
        compose([], "mine", str(tmp_path))


TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.5",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODELIST": "gpu[07-08]",
    "SLURM_NNODES": "2",
}


@pytest.mark.parametrize(
    ("short", "host"),
    [
        ("a", "a"),
        ("a,b", "a"),
        ("gpu[1-3]", "gpu1"),
        ("gpu[08-10,12],cpu[1-2]", "gpu08"),
        ("r[1-2]n[3,7].site,b", "r1n3.site"),
        ("a[1-99999999]", "a1"),
        ("", ""),
    ],
)
def test_the_first_host(short: str, host: str) -> None:
    assert first_host(short) == host


@pytest.mark.parametrize("text", ["n[a-b]", "a[\u00b2-3]", "a[1-2", "a b", "a[]"])
def test_a_list_of_hosts_that_cannot_be_read(text: str) -> None:
    with pytest.raises(InputError, match=r"SLURM_NODELIST"):
        first_host(text)


@pytest.mark.parametrize(("short", "counts"), [("2(x3),1", [2, 2, 2, 1]), ("", [])])
def test_counts(short: str, counts: list[int]) -> None:
    assert expand_counts(short) == counts


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "1"},
        # An interactive shell of srun --pty, in which the program starts its own workers.
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_NODELIST": "a"},
    ],
)
def test_nothing_started_it(environ: dict[str, str]) -> None:
    assert detect(environ) is None


@pytest.mark.parametrize("rank", ["0", "first"])
def test_variables_of_another_program_with_one_process_are_ignored(
    rank: str, caplog: pytest.LogCaptureFixture
) -> None:
    left = {
        "RANK": rank,
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "::1",
        "MASTER_PORT": "x",
    }
    settings = cluster({**left, "RETEXO_RUN_KEY": "mine"})
    assert settings.launcher_env is None
    assert (settings.num_nodes, settings.distributed.master_addr) == (1, "127.0.0.1")
    assert "WORLD_SIZE=1 without torchrun's own variables" in caplog.text
    assert detect({**SLURM, **left, "MASTER_PORT": "5"}).launcher == "Slurm"  # type: ignore[union-attr]
    one = cluster({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}, "num_partitions=1")
    assert one.launcher_env is not None


def cluster(environ: dict[str, str], *overrides: str) -> Settings:
    import hydra

    with hydra.initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        return load_settings(
            hydra.compose("node_classification", list(overrides)), overrides, environ=environ
        )


STEP = {**SLURM, "SLURM_JOB_ID": "123456", "SLURM_STEP_ID": "1"}
UNEVEN = {**SLURM, "SLURM_TASKS_PER_NODE": "3,1", "SLURM_NODEID": "1", "SLURM_LOCALID": "0"}
SIX_CPUS = {**UNEVEN, "SLURM_CPUS_PER_TASK": "6"}
NO_STORE = {name: value for name, value in TORCHRUN.items() if "AGENT_STORE" not in name}


@pytest.mark.parametrize(
    ("environ", "overrides", "values"),
    [
        (TORCHRUN, (), {"node_rank": 3, "num_nodes": 4, "local_ranks": range(3, 4)}),
        (TORCHRUN, (), {"one_machine": False, "run_key": "torchrun none attempt 2"}),
        (TORCHRUN, (), {"distributed.master_addr": "10.0.0.5"}),
        (TORCHRUN, (), {"distributed.master_port": 10011 + 29500 % 20000}),
        (NO_STORE, (), {"distributed.master_port": 29500}),
        (STEP, (), {"local_ranks": range(3, 4), "run_key": "Slurm 123456 step 1"}),
        (STEP, (), {"distributed.master_addr": "gpu07"}),
        (STEP, (), {"distributed.master_port": 10011 + 123456 % 20000}),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}, (), {"one_machine": True}),
        (
            {**SLURM, "SLURM_NODELIST": "gpu07", "SLURM_NNODES": "1"},
            (),
            {"one_machine": True},
        ),
        # What is given comes before the environment.
        (
            TORCHRUN,
            ("distributed.master_addr=10.0.0.9", "distributed.master_port=1234"),
            {"distributed.master_addr": "10.0.0.9", "distributed.master_port": 1234},
        ),
        # An app without workers does not ask.
        ({**TORCHRUN, "WORLD_SIZE": "9"}, ("app=partition_data",), {"launcher_env": None}),
        ({"RETEXO_RUN_KEY": "mine"}, (), {"run_key": "mine"}),
    ],
)
def test_settings_of_a_launcher(
    environ: dict[str, str], overrides: tuple[str, ...], values: dict[str, object]
) -> None:
    settings = cluster(environ, *overrides)
    assert {name: attrgetter(name)(settings) for name in values} == values


def test_the_index_of_a_rank_on_its_machine() -> None:
    assert cluster(TORCHRUN).local_index(3) == 1


@pytest.mark.parametrize(
    ("environ", "overrides", "threads"),
    [
        (TORCHRUN, (), 8),
        (STEP, (), 8),
        (UNEVEN, (), 16),
        (SIX_CPUS, (), 6),
        (SIX_CPUS, ("cluster.threads=3",), 3),
    ],
)
def test_threads_of_sixteen_cores(
    environ: dict[str, str], overrides: tuple[str, ...], threads: int
) -> None:
    assert cluster(environ, *overrides).threads_of(16) == threads


@pytest.mark.parametrize(
    ("environ", "overrides", "words"),
    [
        (
            {**TORCHRUN, "WORLD_SIZE": "5"},
            (),
            "num_partitions=4.*torchrun started 5.*unset RANK and WORLD_SIZE",
        ),
        ({**TORCHRUN, "RANK": "4"}, (), "rank 4 of torchrun"),
        ({**TORCHRUN, "RANK": "-1"}, (), "RANK=-1"),
        ({**TORCHRUN, "MASTER_PORT": "x"}, (), "MASTER_PORT=x"),
        ({**SLURM, "SLURM_NTASKS": "2"}, (), "rank 3 of Slurm"),
        (SLURM, ("parts_per_node=2",), "parts_per_node=2.*Slurm"),
    ],
)
def test_contradictions(environ: dict[str, str], overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        cluster(environ, *overrides)


@pytest.mark.parametrize(
    "content",
    [
        "defaults: 5",
        "defaults: [5]",
        "defaults: ['${a}': b]",
        "seed: 1\nseed: 2",
        "hydra: {sweeper: 5}",
    ],
)
def test_what_hydra_cannot_compose_is_refused(tmp_path: Path, content: str) -> None:
    """It raises errors of many types for files of users."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(content)
    with pytest.raises(InputError):
        compose(["+experiment=mine"], config_dir=str(tmp_path))


def test_an_error_without_a_message_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("null: 5\n")
    ended = run_main("--config-dir", str(tmp_path), "--config-name", "mine", cwd=tmp_path, rc=2)
    assert "without a message, in a configuration: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_refusal_removes_no_folder_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    content = "defaults: [node_classification, _self_]\nhydra: {run: {dir: there/a}}\n"
    (tmp_path / "mine.yaml").write_text(content)
    arguments = ("--config-dir", str(tmp_path), "--config-name", "mine", "num_layers=-1")
    run_main(*arguments, cwd=tmp_path, rc=2)
    assert [*(tmp_path / "there").iterdir()] == []
