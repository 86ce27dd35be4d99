# SPDX-License-Identifier: Apache-2.0
"""`wimm perf` started by a launcher: rank 0 is the target, rank 1 the client."""

import json

import pytest

from conftest import finish, free_port, run, start


def torchrun(rank, port):
    return {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 1)}


def mpirun(rank, port):
    del port
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


def srun(rank, port):
    del port
    return {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1",
            "SLURM_STEP_NODELIST": "n[01-02]"}


def srun_job(rank, port):
    del port
    return {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "SLURM_NNODES": "1",
            "SLURM_JOB_NODELIST": "n[01-02]"}


@pytest.mark.parametrize("launcher", [torchrun, mpirun, srun, srun_job])
@pytest.mark.parametrize("first", [0, 1], ids=["target-first", "client-first"])
def test_ranks_of_a_launcher_meet_without_further_arguments(launcher, first):
    port = free_port()
    own_port = [] if launcher is torchrun else ["-p", port]
    command = ["perf", "paged", "-n", 40, "-s", "4K", "--json", *own_port]
    ranks = {}
    for rank in (first, 1 - first):
        ranks[rank] = start(*command, WIMM_NICS="127.0.0.1:0", **launcher(rank, port))
    status, out, err = finish(ranks[1])
    assert status == 0, err
    result = json.loads(out)
    assert result["validated"] and result["iters"] == 40
    status, out, err = finish(ranks[0])
    assert (status, out) == (0, ""), err


@pytest.mark.parametrize("variables,words", [
    ({"RANK": "0", "WORLD_SIZE": "3"}, "torchrun has started 3 processes: two are wanted"),
    ({"RANK": "x", "WORLD_SIZE": "2"}, 'RANK is "x"'),
    ({"RANK": "5", "WORLD_SIZE": "2"}, "RANK is 5, but WORLD_SIZE is 2"),
    ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
      "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "mpirun does not say where rank 0 runs"),
    ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "2"},
     "srun has started 3 processes: two are wanted"),
    ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_NNODES": "2",
      "SLURM_JOB_NODELIST": "no-such-[07-08].invalid"}, 'host "no-such-07"'),
    ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2",
      "SLURM_STEP_NODELIST": "no-such-[07-08].invalid"}, 'host "no-such-07"'),
])
def test_ranks_that_cannot_meet_say_why(variables, words):
    status, out, err = run("perf", "write", **variables)
    assert (status, out) == (1, "")
    assert words in err


def test_ranks_of_a_single_process_job_are_no_ranks():
    port = free_port()
    server = start("perf", "write", "-p", port, "--nics", "127.0.0.1", RANK="0", WORLD_SIZE="1")
    status, _, err = run("perf", "write", "127.0.0.1", "-p", port, "-n", 10, "-d", "127.0.0.1",
                         RANK="0", WORLD_SIZE="1")
    assert status == 0, err
    assert finish(server)[0] == 0
