# SPDX-License-Identifier: Apache-2.0
"""Exchange of addresses and descriptors among the ranks of a job, before they can talk.

The bytes travel through a store: files in a folder that all ranks see, or anything that has the
set, get and wait of a torch.distributed store. The launcher's environment says who is who.
"""

from __future__ import annotations

import datetime
import itertools
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import Any, Iterable, Mapping, NamedTuple, Protocol, Sequence
from urllib.parse import quote

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.5e-3, 0.05


class Store(Protocol):
    """What a store must be able to do; torch's TCPStore, FileStore and HashStore do."""

    def set(self, key: str, value: Any) -> Any: ...

    def get(self, key: str) -> Any: ...

    def wait(self, keys: list[str], timeout: datetime.timedelta) -> Any: ...


class FileStore:
    """A store of one file a key. A value appears whole or not at all (it is renamed into place).

    Nothing is ever stale on its own account: use a fresh folder for each job, or call clear() when
    all ranks are through.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._numbers = itertools.count()

    def _file(self, key: str) -> Path:
        return self.folder / f"{quote(key, safe='')}.value"

    def set(self, key: str, value: bytes | str) -> None:
        raw = value.encode() if isinstance(value, str) else bytes(value)
        # A dot in front keeps it apart from keys, the process and a number from other writers.
        part = self.folder / f".{os.uname().nodename}.{os.getpid()}.{next(self._numbers)}"
        part.write_bytes(raw)
        os.replace(part, self._file(key))

    def get(self, key: str, timeout: float | datetime.timedelta = 300.0) -> bytes:
        """The value of a key; waits until it is there."""
        self.wait([key], timeout)
        return self._file(key).read_bytes()

    def wait(self, keys: Iterable[str], timeout: float | datetime.timedelta = 300.0) -> None:
        """Wait until all keys are there. Raises TimeoutError, naming the first missing one."""
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
        end, pause = time.monotonic() + seconds, _FIRST_PAUSE_S
        for key in keys:
            while not self._file(key).exists():
                if time.monotonic() >= end:
                    raise TimeoutError(f"{key!r} has not come within {seconds:g} s "
                                       f"(looked in {self.folder})")
                time.sleep(pause)
                pause = min(2 * pause, _LAST_PAUSE_S)

    def clear(self) -> None:
        """Remove all values, and the folder where nothing else is in it."""
        for path in [*self.folder.glob("*.value"), *self.folder.glob(".*.*.*")]:
            path.unlink(missing_ok=True)
        try:
            self.folder.rmdir()
        except OSError:
            pass


class Rendezvous:
    """The ranks of a job and a store between them.

    All ranks must call exchange() and barrier() equally often and in the same order: each call is
    a round with keys of its own.
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

    def __repr__(self) -> str:
        return f"<wimm.rendezvous.Rendezvous rank {self.rank} of {self.world_size}>"

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


class Launcher(NamedTuple):
    """What a launcher's environment says about this process."""

    name: str               #: "torchrun", "mpirun" or "srun"
    rank: int
    world_size: int
    local_rank: int | None
    local_size: int | None
    job: str                #: tells this run from others of the same user


class _Variables(NamedTuple):
    name: str
    rank: str
    world_size: str
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]
    job: tuple[str, ...]


# torchrun first: under srun or mpirun it is the inner one, whose ranks are the processes.
_LAUNCHERS = (
    _Variables("torchrun", "RANK", "WORLD_SIZE", ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",),
               ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")),
    _Variables("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
               ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_LOCAL_SIZE",),
               ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")),
    _Variables("srun", "SLURM_PROCID", "SLURM_NTASKS", ("SLURM_LOCALID",),
               ("SLURM_NTASKS_PER_NODE",), ("SLURM_JOB_ID", "SLURM_STEP_ID")),
)


def launcher(environ: Mapping[str, str] | None = None) -> Launcher | None:
    """Who started this process, or None where no launcher's variables are set."""
    env = os.environ if environ is None else environ
    for names in _LAUNCHERS:
        if names.rank in env and names.world_size in env:
            rank, size = _number(env, names.rank), _number(env, names.world_size)
            if not 0 <= rank < size:
                raise ValueError(f"{names.rank}={rank} does not go with {names.world_size}={size}")
            job = "-".join(env[name] for name in names.job if env.get(name))
            return Launcher(names.name, rank, size, _first(env, names.local_rank),
                            _first(env, names.local_size), f"{names.name}-{job or 'job'}")
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
