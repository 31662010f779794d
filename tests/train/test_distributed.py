"""What says that a process is one of several, and who is waited for in vain."""

import socket

import jax
import pytest

from cpc.train import distributed, is_first, join_processes, run_on_first, wait_for_all
from cpc.types import UserError

NAMES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


@pytest.fixture
def describe(monkeypatch):
    def describe(*values):
        for name, value in zip(NAMES, values, strict=True):
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    describe(None, None, None)
    return describe


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_alone(describe):
    assert distributed.find_cluster() is None
    describe("127.0.0.1:1", "1", "0")
    assert distributed.find_cluster() is None
    join_processes()
    wait_for_all("nothing")
    assert not jax.distributed.is_initialized()
    assert is_first()
    assert run_on_first(lambda x: x + 1, 2) == 3


def test_three_variables_make_a_cluster(describe):
    describe("node7:1234", "3", "2")
    assert distributed.find_cluster() == ("node7:1234", 3, 2, None)


def test_slurm_is_found(describe, monkeypatch):
    """As JAX reads it: process 1 of 2, with the one device of its rank on the machine."""
    for name, value in {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NODELIST": "node[3-4]",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NUM_NODES": "2",
    }.items():
        monkeypatch.setenv(name, value)
    found = distributed.find_cluster()
    assert found is not None
    assert found.address.startswith("node3:")
    assert (found.number, found.own, found.local_devices) == (2, 1, [0])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (("a:1", None, None), "some are set and some are not"),
        (("a:1", "2", "2"), "JAX_PROCESS_ID is 2: of 2 processes it is 0 to 1"),
        (("a:1", "two", "0"), "JAX_NUM_PROCESSES is 'two'"),
        (("a", "2", "0"), "JAX_COORDINATOR_ADDRESS is 'a': write host:port"),
    ],
)
def test_variables_that_do_not_fit_are_one_sentence(describe, values, sentence):
    describe(*values)
    with pytest.raises(UserError, match=sentence):
        distributed.find_cluster()


@pytest.mark.parametrize(
    ("index", "sentence"), [("1", "no process 0 answers at"), ("0", "not all of 2 came to")]
)
def test_others_that_do_not_come_are_one_sentence(describe, index, sentence):
    """Before JAX is asked, which would abort."""
    address = f"127.0.0.1:{free_port()}"
    describe(address, "2", index)
    with pytest.raises(UserError, match=f"{sentence} {address} within 0.5 s: check"):
        join_processes(join_seconds=0.5)
    assert not jax.distributed.is_initialized()


def test_a_port_in_use_is_one_sentence(describe):
    with socket.create_server(("", 0)) as server:
        describe(f"127.0.0.1:{server.getsockname()[1]}", "2", "0")
        with pytest.raises(UserError, match=r"cannot listen at .* choose another port"):
            join_processes(join_seconds=0.5)
