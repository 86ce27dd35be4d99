# SPDX-License-Identifier: Apache-2.0
"""Exchange of addresses and descriptors among the ranks of a job, before they can talk.

The bytes travel through a store: files in a folder that all ranks see, or anything that has the
set, get and wait of a torch.distributed store. The launcher's environment says who is who.
"""

from __future__ import annotations

import datetime
import os
import stat
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Protocol, Sequence
from urllib.parse import quote

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.5e-3, 0.05


class Store(Protocol):
    """What a store must be able to do; torch's TCPStore, FileStore and HashStore do."""

    def set(self, key: str, value: Any) -> Any: ...

    def get(self, key: str) -> Any: ...

    def wait(self, keys: list[str], timeout: datetime.timedelta) -> Any: ...


class FileStore:
    """A store of one file a key. A value appears whole or not at all (it is renamed into place)."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _file(self, key: str) -> Path:
        return self.folder / f"{quote(key, safe='')}.value"

    def set(self, key: str, value: bytes | str) -> None:
        part = self.folder / f".{os.urandom(8).hex()}.part"  # the dot keeps it apart from keys
        part.write_bytes(_as_bytes(value))
        os.replace(part, self._file(key))

    def look(self, key: str) -> bytes | None:
        """The value of a key, or None where it is not there yet."""
        try:
            return self._file(key).read_bytes()
        except FileNotFoundError:
            return None

    def get(self, key: str, timeout: float | datetime.timedelta = 300.0) -> bytes:
        """The value of a key; waits until it is there."""
        self.wait([key], timeout)
        return self._file(key).read_bytes()

    def wait(self, keys: Iterable[str], timeout: float | datetime.timedelta = 300.0) -> None:
        """Wait until all keys are there. Raises TimeoutError, naming the first missing one."""
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
        pauses = _pauses(seconds)
        for key in keys:
            while not self._file(key).exists():
                if not next(pauses):
                    raise TimeoutError(f"{key!r} has not come within {seconds:g} s "
                                       f"(looked in {self.folder})")

    def clear(self) -> None:
        """Remove all values, and the folder where nothing else is in it."""
        for path in [*self.folder.glob("*.value"), *self.folder.glob(".*.part")]:
            path.unlink(missing_ok=True)
        try:
            self.folder.rmdir()
        except OSError:
            pass

    def agree(self, rank: int, world_size: int, timeout: float) -> str:
        """A name for this run that all its ranks, and nobody before them, have agreed on.

        A run that broke off leaves files behind. Rank 0 repeats to each rank the random word which
        that rank has just said; a rank believes nobody who does not know its word of today.
        """
        word = os.urandom(8).hex()
        self.set(f"hello/{rank}", word)
        pauses = _pauses(timeout)
        session, words = "", [""] * world_size
        while True:
            if rank == 0:
                heard = [_as_bytes(self.look(f"hello/{other}") or b"").decode()
                         for other in range(world_size)]
                if all(heard) and heard != words:
                    session, words = os.urandom(8).hex(), heard
                    self.set("session", " ".join([session, *words]))
                if session and all(self.look(f"{session}/yes/{other}") is not None
                                   for other in range(1, world_size)):
                    self.set(f"{session}/go", b"")
                    return session
            else:
                said, *words = (self.look("session") or b"-").decode().split()
                if len(words) == world_size and words[rank] == word and said != session:
                    session = said
                    self.set(f"{session}/yes/{rank}", b"")
                if session and self.look(f"{session}/go") is not None:
                    return session
            if not next(pauses):
                raise TimeoutError(f"not all of {world_size} ranks have come within {timeout:g} s "
                                   f"(looked in {self.folder})")


def _pauses(seconds: float) -> Iterator[bool]:
    """Each step is a pause, longer than the one before; False when the time is up."""
    end, pause = time.monotonic() + seconds, _FIRST_PAUSE_S
    while True:
        left = end - time.monotonic()
        if left > 0:
            time.sleep(min(pause, left))
        pause = min(2 * pause, _LAST_PAUSE_S)
        yield left > 0


class Rendezvous:
    """The ranks of a job and a store between them.

    All ranks must call exchange() and barrier() equally often and in the same order: each call is
    a round with keys of its own. Over a FileStore the constructor waits until all ranks are there,
    and what an earlier run has left in the folder is not taken for today's.
    """

    def __init__(self, store: Store, rank: int, world_size: int, *, prefix: str = "wimm",
                 timeout: float = 60.0, launcher: Launcher | None = None) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}: ranks count from 0")
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self.launcher = launcher
        self.timeout = timeout
        self._prefix = prefix
        self._round = 0
        if isinstance(store, FileStore):
            self._prefix += "/" + store.agree(rank, world_size, timeout)

    def __repr__(self) -> str:
        return f"<wimm.rendezvous.Rendezvous rank {self.rank} of {self.world_size}>"

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None,
                 trace: TracebackType | None) -> None:
        if kind is None:
            self.close()

    def exchange(self, payload: bytes, timeout: float | None = None) -> list[bytes]:
        """Give this rank's bytes to all and get everybody's, by rank."""
        seconds = self.timeout if timeout is None else timeout
        keys = [f"{self._prefix}/{self._round}/{rank}" for rank in range(self.world_size)]
        self._round += 1
        self.store.set(keys[self.rank], bytes(payload))
        self.store.wait(keys, datetime.timedelta(seconds=seconds))
        return [_as_bytes(self.store.get(key)) for key in keys]

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until all ranks are here."""
        self.exchange(b"", timeout)

    def close(self) -> None:
        """This rank is through. Rank 0 waits for all others, then removes the files of a FileStore;
        stores of others go with their owner."""
        if isinstance(self.store, FileStore):
            keys = [f"{self._prefix}/through/{rank}" for rank in range(1, self.world_size)]
            if self.rank:
                self.store.set(keys[self.rank - 1], b"")
            else:
                self.store.wait(keys, self.timeout)
                self.store.clear()


class Launcher(NamedTuple):
    """What a launcher's environment says about this process."""

    name: str               #: "torchrun", "mpirun" or "srun"
    rank: int
    world_size: int
    local_rank: int | None
    local_size: int | None  #: ranks on this host, None where the launcher does not say
    job: str                #: tells this run from others of the same user


class _Variables(NamedTuple):
    name: str
    rank: str
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]
    hosts: tuple[str, ...]
    job: tuple[str, ...]


# torchrun first: under srun or mpirun it is the inner one, whose ranks are the processes. Of two
# names the first that is set counts: a step of srun may be smaller than its job. The command's
# tools/lib/ranks.c reads the same.
_LAUNCHERS = (
    _Variables("torchrun", "RANK", ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",), (),
               ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")),
    _Variables("mpirun", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",),
               ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_LOCAL_SIZE",), (),
               ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")),
    _Variables("srun", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
               ("SLURM_LOCALID",), (), ("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
               ("SLURM_JOB_ID", "SLURM_STEP_ID")),
)


def launcher(environ: Mapping[str, str] | None = None) -> Launcher | None:
    """Who started this process, or None where no launcher's variables are set."""
    env = os.environ if environ is None else environ
    for names in _LAUNCHERS:
        size_name = next((name for name in names.world_size if name in env), None)
        if names.rank in env and size_name is not None:
            rank, size = _number(env, names.rank), _number(env, size_name)
            if not 0 <= rank < size:
                raise ValueError(f"{names.rank}={rank} does not go with {size_name}={size}")
            job = "-".join(env[name] for name in names.job if env.get(name))
            local_size = size if _first(env, names.hosts) == 1 else _first(env, names.local_size)
            return Launcher(names.name, rank, size, _first(env, names.local_rank), local_size,
                            f"{names.name}-{job or 'job'}")
    return None


def from_env(*, store: Store | None = None, folder: str | os.PathLike[str] | None = None,
             timeout: float = 60.0, environ: Mapping[str, str] | None = None) -> Rendezvous:
    """The rendezvous of the job that torchrun, mpirun or srun has started this process in.

    store   anything with set, get and wait, such as torch.distributed's
    folder  or: a folder that all ranks see; the job gets a folder of its own in it
    With neither, a folder of this machine is used, which serves jobs on one host only; others are
    refused. Outside a launcher this process is rank 0 of 1.
    """
    found = launcher(environ)
    if found is None:
        found = Launcher("none", 0, 1, 0, 1, f"single-{os.getpid()}")
    if store is not None and folder is not None:
        raise ValueError("give a store or a folder, not both")
    if store is None:
        parent = Path(folder) if folder is not None else _folder_of_this_host(found)
        store = FileStore(parent / quote(found.job, safe="")[:200])
    return Rendezvous(store, found.rank, found.world_size, timeout=timeout, launcher=found)


def _folder_of_this_host(found: Launcher) -> Path:
    """A folder that only this user can write to, for jobs whose ranks are all on this host."""
    if found.local_size != found.world_size:
        raise ValueError(f"{found.name} has started {found.world_size} ranks and "
                         f"{found.local_size or 'an unknown number'} of them on this host: give "
                         f"from_env() a store, or a folder that all hosts see")
    folder = Path(tempfile.gettempdir()) / f"wimm-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder that only this user can write to")
    return folder


def _number(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except ValueError:
        raise ValueError(f"{name}={env[name]!r} is not a number") from None


def _first(env: Mapping[str, str], names: Sequence[str]) -> int | None:
    for name in names:
        if env.get(name, "").isdigit():
            return int(env[name])
    return None


def _as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
