"""Ranks from the environment of torchrun and Slurm."""

import pytest

from partitioning.errors import InputError
from retexo.settings.compose import load
from retexo.settings.launcher_env import detect, expand_counts, first_host
from retexo.settings.run_settings import Settings
from retexo.settings.schema import CONFIG_DIR

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


@pytest.mark.parametrize("short", ["n[a-b]", "a[\u00b2-3]", "a[1-2", "a b", "a[]"])
def test_hosts_that_cannot_be_read(short: str) -> None:
    with pytest.raises(InputError, match="SLURM_NODELIST"):
        first_host(short)


@pytest.mark.parametrize("short", ["2(x99999999)", f"1(x{'9' * 5000})", "1(x60000),2(x60000)"])
def test_counts_have_a_limit(short: str) -> None:
    with pytest.raises(InputError, match="SLURM_TASKS_PER_NODE"):
        expand_counts(short)


def test_counts() -> None:
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    assert expand_counts("") == []


def test_nothing_started_it() -> None:
    assert detect({}) is None
    assert detect({"RANK": "1"}) is None
    # An interactive shell of srun --pty, in which the program starts its own workers.
    assert detect({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_NODELIST": "a"}) is None


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
    settings = cluster({**left, "RETEXO_RUN_KEY": "mine"}).train.cluster
    assert settings.launcher_env is None
    assert (settings.num_nodes, settings.master_addr) == (1, "127.0.0.1")
    assert "WORLD_SIZE=1 without torchrun's own variables" in caplog.text
    assert detect({**SLURM, **left, "MASTER_PORT": "5"}).launcher == "Slurm"  # type: ignore[union-attr]
    one = cluster({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}, "num_partitions=1")
    assert one.train.cluster.launcher_env is not None


def cluster(environ: dict[str, str], *overrides: str) -> Settings:
    import hydra

    with hydra.initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        return load(
            hydra.compose("node_classification", list(overrides)), overrides, environ=environ
        )


def test_torchrun() -> None:
    settings = cluster(TORCHRUN).train.cluster
    assert list(settings.local_ranks) == [3]
    assert settings.node_rank == 3
    assert settings.num_nodes == 4
    assert (settings.master_addr, settings.master_port) == ("10.0.0.5", 29500)
    assert settings.local_index(3) == 1
    assert settings.threads_of(16) == 8
    assert not settings.one_machine
    assert settings.launcher_env is not None
    assert settings.launcher_env.store
    assert settings.run_key == "torchrun none attempt 2"


def test_all_on_one_machine() -> None:
    assert cluster({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}).train.cluster.one_machine
    assert cluster(
        {**SLURM, "SLURM_NODELIST": "gpu07", "SLURM_NNODES": "1"}
    ).train.cluster.one_machine


def test_slurm() -> None:
    settings = cluster({**SLURM, "SLURM_JOB_ID": "123456", "SLURM_STEP_ID": "1"}).train.cluster
    assert list(settings.local_ranks) == [3]
    assert settings.master_addr == "gpu07"
    assert settings.master_port == 10011 + 123456 % 20000
    assert settings.threads_of(16) == 8
    assert settings.run_key == "Slurm 123456 step 1"


def test_uneven_tasks_of_slurm() -> None:
    environ = {**SLURM, "SLURM_TASKS_PER_NODE": "3,1", "SLURM_NODEID": "1", "SLURM_LOCALID": "0"}
    assert cluster(environ).train.cluster.threads_of(16) == 16
    assert cluster({**environ, "SLURM_CPUS_PER_TASK": "6"}).train.cluster.threads_of(16) == 6
    assert (
        cluster(
            {**environ, "SLURM_CPUS_PER_TASK": "6"}, "cluster.threads=3"
        ).train.cluster.threads_of(16)
        == 3
    )


def test_what_is_given_comes_before_the_environment() -> None:
    settings = cluster(
        TORCHRUN, "distributed.master_addr=10.0.0.9", "distributed.master_port=1234"
    ).train.cluster
    assert (settings.master_addr, settings.master_port) == ("10.0.0.9", 1234)


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


def test_apps_that_have_no_workers_do_not_ask() -> None:
    assert (
        cluster({**TORCHRUN, "WORLD_SIZE": "9"}, "app=partition_data").train.cluster.launcher_env
        is None
    )


def test_a_key_of_the_users() -> None:
    assert cluster({"RETEXO_RUN_KEY": "mine"}).train.cluster.run_key == "mine"
