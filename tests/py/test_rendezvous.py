# SPDX-License-Identifier: Apache-2.0
"""Ranks find each other through files and stores, under each launcher's variables."""
import datetime
import os
import threading

import pytest
import wimm
from wimm import rendezvous

WAIT = 20


class FakeTorchStore:
    """set, get and wait as a torch.distributed store has them: get returns bytes, wait takes a
    timedelta only and raises when it is over."""

    def __init__(self):
        self._values = {}
        self._changed = threading.Condition()

    def set(self, key, value):
        assert isinstance(key, str) and isinstance(value, (bytes, str))
        with self._changed:
            self._values[key] = value if isinstance(value, bytes) else value.encode()
            self._changed.notify_all()

    def wait(self, keys, timeout):
        assert isinstance(keys, list) and isinstance(timeout, datetime.timedelta)
        with self._changed:
            if not self._changed.wait_for(lambda: all(key in self._values for key in keys),
                                          timeout.total_seconds()):
                raise RuntimeError("wait timeout")

    def get(self, key):
        self.wait([key], datetime.timedelta(seconds=WAIT))
        return self._values[key]


def in_threads(count, work):
    """work(rank) in a thread each; returns what each returned."""
    results, failures = [None] * count, []

    def run(rank):
        try:
            results[rank] = work(rank)
        except BaseException as problem:
            failures.append(problem)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT + 10)
    if failures:
        raise failures[0]
    return results


@pytest.fixture(params=["files", "torch-shaped"])
def make_store(request, tmp_path):
    """A store for each rank: a FileStore of its own on one folder, or one shared object."""
    shared = FakeTorchStore()
    return (lambda: rendezvous.FileStore(tmp_path / "store")) if request.param == "files" \
        else (lambda: shared)


def test_exchange_gives_everybody_everything_round_after_round(make_store):
    """Goal: each round hands all payloads to all, by rank, none mixed with another round's."""

    def work(rank):
        meeting = rendezvous.Rendezvous(make_store(), rank, 4, timeout=WAIT)
        rounds = [meeting.exchange(b"%d of %d\0\xff" % (rank, number)) for number in range(3)]
        meeting.barrier()
        return rounds

    for rounds in in_threads(4, work):
        assert rounds == [[b"%d of %d\0\xff" % (rank, number) for rank in range(4)]
                          for number in range(3)]


def test_exchange_with_a_rank_missing_times_out(make_store):
    """Goal: nobody waits for ever, and over files the text says where it looked."""
    with pytest.raises((TimeoutError, RuntimeError)):
        rendezvous.Rendezvous(make_store(), 0, 2, timeout=0.02).exchange(b"alone")


def test_files_of_an_earlier_run_are_not_taken_for_today_s(tmp_path):
    """Goal: a run that broke off in the same folder leaves nothing that misleads the next one."""

    def run(word, close):
        def work(rank):
            meeting = rendezvous.Rendezvous(rendezvous.FileStore(tmp_path / "job"), rank, 3,
                                            timeout=WAIT)
            got = meeting.exchange(b"%s %d" % (word, rank))
            if close:
                meeting.close()
            return got

        return in_threads(3, work)

    for word, close in ((b"broken", False), (b"again", False), (b"today", True)):
        assert run(word, close) == [[b"%s %d" % (word, rank) for rank in range(3)]] * 3
    assert not (tmp_path / "job").exists(), "close() leaves nothing behind"


def test_file_value_appears_whole_or_not_at_all(tmp_path):
    """Goal: readers of a value that is written over and over never see a part of one."""
    store, seen = rendezvous.FileStore(tmp_path), set()
    store.set("key", b"a" * 100000)

    def write():
        for letter in b"bcdefgh" * 20:
            store.set("key", bytes([letter]) * 100000)

    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        value = store.get("key")
        assert len(value) == 100000
        seen |= set(value[:1] + value[-1:])
        assert value == value[:1] * 100000
    thread.join()
    assert store.get("key") == b"h" * 100000 and seen


def test_file_keys_may_be_any_text(tmp_path):
    """Goal: no key escapes the folder or meets another one."""
    store = rendezvous.FileStore(tmp_path / "in")
    keys = ["../out", "a/b", "a b", "a%2Fb", ".", "", "ä", "a\nb"]
    for key in keys:
        store.set(key, key)
    assert [store.get(key).decode() for key in keys] == keys
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    with pytest.raises(TimeoutError, match="missing"):
        store.wait(["a/b", "missing"], 0.01)
    store.clear()
    assert not list(tmp_path.iterdir())


LAUNCHERS = {
    "torchrun": lambda rank, size: {
        "RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500, "TORCHELASTIC_RUN_ID": "none"},
    "mpirun": lambda rank, size: {
        "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": size,
        "OMPI_COMM_WORLD_LOCAL_RANK": rank, "OMPI_COMM_WORLD_LOCAL_SIZE": size,
        "PMIX_NAMESPACE": "prterun-host-4711@1"},
    "srun": lambda rank, size: {
        "SLURM_PROCID": rank, "SLURM_NTASKS": size, "SLURM_LOCALID": rank, "SLURM_NNODES": 1,
        "SLURM_JOB_ID": 815, "SLURM_STEP_ID": 0},
}
RANK = """
import os
with wimm.Engine("tcp", "127.0.0.1:0") as engine, wimm.rendezvous.from_env(timeout=30) as meeting:
    me, size = meeting.rank, meeting.world_size
    memory = bytearray(size)
    descs = meeting.exchange(engine.register(memory).desc)
    expected = engine.expect(1, size, deadline=30)
    source = engine.register(bytes([100 + me]), local_only=True)
    for desc in descs:
        engine.write(source, engine.open_remote(desc), dst_offset=me, imm=1, deadline=30)
    expected.result(30)
    assert memory == bytes(100 + rank for rank in range(size)), memory
    meeting.barrier()
    print(meeting.launcher.name, me, size)
"""


@pytest.mark.parametrize("name", LAUNCHERS)
def test_ranks_of_a_launcher_find_each_other_and_move_bytes(name, run_python, tmp_path):
    """Goal: started as torchrun, mpirun or srun start ranks, each writes to all others."""
    clean = {key: value for key, value in os.environ.items()
             if not key.startswith(("SLURM_", "OMPI_", "PMIX_", "TORCHELASTIC_"))}

    def work(rank):
        variables = {key: str(value) for key, value in LAUNCHERS[name](rank, 3).items()}
        return run_python(RANK, environ={**clean, **variables, "TMPDIR": str(tmp_path)}).stdout

    assert in_threads(3, work) == [f"{name} {rank} 3\n" for rank in range(3)]
    assert [path.name for path in tmp_path.iterdir()] == [f"wimm-{os.getuid()}"]
    assert not list((tmp_path / f"wimm-{os.getuid()}").iterdir())


@pytest.mark.parametrize("name", LAUNCHERS)
def test_launcher_variables_are_understood(name):
    """Goal: rank, size and place are read from each launcher's variables."""
    environ = {key: str(value) for key, value in LAUNCHERS[name](1, 2).items()}
    found = rendezvous.launcher(environ)
    assert (found.name, found.rank, found.world_size) == (name, 1, 2)
    assert (found.local_rank, found.local_size) == (1, 2)
    assert found.job.startswith(name + "-") and len(found.job) > len(name) + 3


def test_launcher_torchrun_inside_srun_is_torchrun():
    """Goal: of two launchers the inner one counts, which started the processes."""
    environ = {key: str(value) for make, args in ((LAUNCHERS["srun"], (0, 1)),
                                                  (LAUNCHERS["torchrun"], (3, 8)))
               for key, value in make(*args).items()}
    assert rendezvous.launcher(environ).rank == 3


@pytest.mark.parametrize("variables, size, local_size", [
    ({"SLURM_NTASKS": "8", "SLURM_NNODES": "2"}, 8, None),
    ({"SLURM_NTASKS": "8", "SLURM_NNODES": "2", "SLURM_STEP_NUM_TASKS": "2",
      "SLURM_STEP_NUM_NODES": "1"}, 2, 2),
], ids=["job alone", "step of a job"])
def test_launcher_srun_counts_the_ranks_of_the_step(variables, size, local_size):
    """Goal: a step smaller than its job is not left to wait for ranks that nobody starts."""
    found = rendezvous.launcher({"SLURM_PROCID": "1", **variables})
    assert (found.rank, found.world_size, found.local_size) == (1, size, local_size)


@pytest.mark.parametrize("environ, problem", [
    ({"SLURM_PROCID": "2", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2"},
     "SLURM_STEP_NUM_TASKS"),
    ({"RANK": "x", "WORLD_SIZE": "2"}, "not a number"),
    ({"RANK": "2", "WORLD_SIZE": "2"}, "does not go with"),
])
def test_launcher_nonsense_is_refused(environ, problem):
    """Goal: wrong variables are named, not guessed around."""
    with pytest.raises(ValueError, match=problem):
        rendezvous.from_env(environ=environ)


def test_from_env_over_several_hosts_asks_for_a_store(tmp_path):
    """Goal: ranks on other hosts cannot see this host's folder, and are not left to time out."""
    environ = {**LAUNCHERS["torchrun"](0, 1), "WORLD_SIZE": 16, "LOCAL_WORLD_SIZE": 8}
    environ = {key: str(value) for key, value in environ.items()}
    with pytest.raises(ValueError, match="all hosts see"):
        rendezvous.from_env(environ=environ)
    store = FakeTorchStore()
    assert rendezvous.from_env(environ=environ, store=store).world_size == 16
    with pytest.raises(ValueError, match="not both"):
        rendezvous.from_env(environ=environ, store=store, folder=tmp_path)


def test_from_env_without_a_launcher_is_one_rank(tmp_path):
    """Goal: a program written for many ranks runs alone as well."""
    with rendezvous.from_env(environ={}, folder=tmp_path) as meeting:
        assert (meeting.rank, meeting.world_size) == (0, 1)
        assert meeting.exchange(b"me") == [b"me"]
    assert not list(tmp_path.iterdir())


def test_from_env_folder_that_others_can_write_to_is_refused(tmp_path, monkeypatch):
    """Goal: nobody else on the machine can slip addresses in."""
    monkeypatch.setattr(rendezvous.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"wimm-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError):
        rendezvous.from_env(environ={})
    folder.rmdir()
    folder.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(PermissionError):
        rendezvous.from_env(environ={})


def test_rendezvous_is_reachable_from_the_package():
    """Goal: wimm.rendezvous works without an import of its own."""
    assert wimm.rendezvous.from_env is rendezvous.from_env
