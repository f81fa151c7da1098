"""The files of deploy/: what each scheduler sets comes out as settings. No container runs here;
scripts/check_deploy.sh checks the form.
"""

import re
import shlex
from typing import Any

import hydra
import pytest
import yaml
from support import ROOT

from retexo.settings.compose import load
from retexo.settings.run_settings import Settings
from retexo.settings.schema import CONFIG_DIR

DEPLOY = ROOT / "deploy"


def read(name: str) -> dict[str, Any]:
    """The last document of a file."""
    *_, last = yaml.safe_load_all((DEPLOY / name).read_text())
    return dict(last)


def pod(job: dict[str, Any]) -> dict[str, Any]:
    """The only container of a job's pods."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return dict(container)


def arguments(container: dict[str, Any], environ: dict[str, str]) -> list[str]:
    """The arguments as the kubelet passes them: $(NAME) is a variable of the container."""
    return [
        re.sub(r"\$\((\w+)\)", lambda name: environ[name[1]], each) for each in container["args"]
    ]


def settings_of(given: list[str], environ: dict[str, str]) -> tuple[Settings, str]:
    """Settings and run directory of the command with these arguments in this environment."""
    assert given[0] == "--config-name"
    with hydra.initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        overrides = [each for each in given[2:] if not each.startswith("hydra.")]
        settings = load(hydra.compose(given[1], overrides), overrides, given[1], environ=environ)
    (run_dir,) = (each.partition("=")[2] for each in given if each.startswith("hydra.run.dir="))
    return settings, run_dir


def kubernetes() -> tuple[list[str], dict[str, str]]:
    environ = {"JOB_COMPLETION_INDEX": "1", "RETEXO_RUN_KEY": "uid"}
    return arguments(pod(read("kubernetes/train.yaml")), environ), environ


def pytorchjob() -> tuple[list[str], dict[str, str]]:
    worker = read("kubernetes/pytorchjob.yaml")["spec"]["pytorchReplicaSpecs"]["Worker"]
    environ = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "retexo-master-0",
        "MASTER_PORT": "23456",
        "RETEXO_RUN_KEY": "retexo",
    }
    return arguments(pod({"spec": worker}), environ), environ


def compose_file() -> tuple[list[str], dict[str, str]]:
    return read("compose.yaml")["services"]["node1"]["command"], {"RETEXO_RUN_KEY": "compose"}


def slurm() -> tuple[list[str], dict[str, str]]:
    environ = {
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": "0",
        "SLURM_NODELIST": "gpu[07-08]",
        "SLURM_NNODES": "2",
        "SLURM_JOB_ID": "12",
    }
    (command,) = re.findall(r"srun .* main\.py (.*\\\n.*)", (DEPLOY / "slurm.sh").read_text())
    for old, new in (("=4", "=2"), ("$SLURM_JOB_ID", "12/node1"), ('"$@"', ""), ("\\\n", "")):
        command = command.replace(old, new)
    words = shlex.split(command)
    return words, environ


@pytest.mark.parametrize(
    ("case", "address", "port", "key"),
    [
        (kubernetes, "retexo-train-0.retexo", 10011, "uid"),
        (pytorchjob, "retexo-master-0", 23456, "retexo"),
        (compose_file, "node0", 10011, "compose"),
        (slurm, "gpu07", 10023, "Slurm 12 step "),
    ],
)
def test_the_environment_of_a_scheduler_becomes_settings(
    case: Any, address: str, port: int, key: str
) -> None:
    """Of the second of two nodes, which resumes after a failure."""
    settings, run_dir = settings_of(*case())
    cluster = settings.train.cluster
    assert (cluster.num_nodes, cluster.node_rank, cluster.parts_per_node) == (2, 1, 1)
    assert (cluster.master_addr, cluster.master_port, cluster.run_key) == (address, port, key)
    assert settings.train.checkpoint.every
    assert settings.resolved["resume"] == "auto"
    assert run_dir.endswith("node1")


def test_the_files_for_kubernetes_agree() -> None:
    """Number of pods, names and places, which several files and fields repeat."""
    service, job = yaml.safe_load_all((DEPLOY / "kubernetes" / "train.yaml").read_text())
    spec, name = job["spec"], job["metadata"]["name"]
    given = pod(job)["args"]
    assert f"distributed.master_addr={name}-0.{service['metadata']['name']}" in given
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert spec["completions"] == spec["parallelism"] == 2
    (rule, _) = spec["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == pod(job)["name"]
    replicas = read("kubernetes/pytorchjob.yaml")["spec"]["pytorchReplicaSpecs"]
    assert sum(each["replicas"] for each in replicas.values()) == 2
    shared = {"dataset_name=cora", "num_partitions=2", "partition_dir=/data/partitions"}
    for container in (
        pod(job),
        pod(read("kubernetes/partition.yaml")),
        pod({"spec": replicas["Master"]}),
    ):
        assert shared <= set(container["args"])
