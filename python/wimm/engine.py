# SPDX-License-Identifier: Apache-2.0
"""The engine: opening and closing it, its memory, its peers and its counters."""

from __future__ import annotations

import atexit
import ctypes
import threading
import warnings
import weakref
from types import TracebackType
from typing import Any, Callable, Iterable, NamedTuple, Sequence

from . import _abi, _calls, _native
from ._abi import PeerEventKind, ProgressMode, Status, wimm_net_addr
from ._buffers import memory_of
from ._child import Child
from .address import Address, from_c, to_c
from .errors import Error, as_member, as_status, error
from .objects import Barrier, Mirror, PeerGroup, Receiver, Watcher
from .operation import Operation
from .region import Region, RemoteRegion
from .transfers import Transfers


class PeerEvent(NamedTuple):
    """What happened to a peer."""

    kind: PeerEventKind
    cause: Status | int
    peer: int
    nic: int            #: index of the local NIC, for NIC_LOST and NIC_BACK
    instance: bytes
    text: str


class PeerError(NamedTuple):
    """The last failure of a peer's session."""

    code: Status | int
    vendor_code: int    #: errno or the device's own; 0 if none
    text: str


class PeerInfo(NamedTuple):
    """What is known of a peer."""

    up: bool            #: its session stands
    paths_up: int
    same_host: bool     #: writes go through this machine's memory, not a NIC
    instance: bytes     #: zero: not known yet
    way: str            #: which way its writes go and why, for people
    progress: ProgressMode | int  #: who drives its engine: its threads, or its caller


class Stats(NamedTuple):
    """An engine's counters. Each is exact, together they are no snapshot."""

    nics: int
    peers_up: int
    ops_open: int
    ops_submitted: int
    ops_done: int
    ops_failed: int
    again: int
    bytes_written: int
    writes_posted: int
    imms_sent: int
    imms_received: int
    msgs_sent: int
    msgs_received: int
    retries: int
    callbacks: int
    worker_steps: int
    worker_sleeps: int
    index_bytes: int
    pending_ops: int
    regions: int
    expectations: int


class Engine(Transfers):
    """Moves memory to and from peers.

    provider       "tcp" (any host), "host" (processes of this machine), "verbs" (RDMA NICs), "sim"
                   (this process, for tests); None: as the settings say
    nics           one text or several, such as "127.0.0.1:0"; None: as the settings say, else all
    max_ops        operations in flight; 0: as the settings say, as for the next two
    heartbeat      seconds between signs of life
    peer_timeout   seconds of silence that mean a peer is dead
    on_peer_event  called with a PeerEvent, on the callback thread
    caller_driven  no threads: progress() does the work, and whatever waits calls it. One thread
                   makes all calls then
    job_key        16 to 4096 secret bytes: who does not have the same gets no session; None: as the
                   settings say
    """

    def __init__(self, provider: str | None = None, nics: str | Sequence[str] | None = None, *,
                 max_ops: int = 0, heartbeat: float = 0, peer_timeout: float = 0,
                 on_peer_event: Callable[[PeerEvent], object] | None = None,
                 caller_driven: bool = False, job_key: bytes | None = None) -> None:
        key = None if job_key is None else bytes(memoryview(job_key))
        opts = _abi.wimm_engine_opts(
            size=ctypes.sizeof(_abi.wimm_engine_opts),
            provider=provider.encode() if provider is not None else None,
            nics=nics.encode() if isinstance(nics, str) else ",".join(nics).encode()
            if nics is not None else None,
            progress=ProgressMode.CALLER if caller_driven else ProgressMode.THREADS,
            max_ops=_calls.unsigned("max_ops", max_ops, _calls.U32_MAX),
            heartbeat_ms=_milliseconds("heartbeat", heartbeat),
            peer_timeout_ms=_milliseconds("peer_timeout", peer_timeout),
            job_key=ctypes.cast(ctypes.c_char_p(key), ctypes.c_void_p),
            job_key_bytes=len(key) if key is not None else 0)
        self._lib = _native.library()
        self.caller_driven = caller_driven
        self._children: dict[Child, None] = {}
        self._closing = threading.Lock()
        self._event_number = 0
        if on_peer_event is not None:
            self._event_number = _calls.remember(_event_target(on_peer_event))
            opts.on_peer_event = _calls.entry_points().peer_event
            opts.context = self._event_number
        out = ctypes.c_void_p()
        try:
            _open_engines.admit()
            _native.check(self._lib.wimm_engine_open(ctypes.byref(opts), ctypes.byref(out)))
        except BaseException:
            _calls.forget(self._event_number)
            raise
        self._gate = _calls.Gate(out.value or 0)
        _open_engines.add(self)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            self.close()
        except Error as problem:
            # A fork's child leaves the block too, and has nothing to close there.
            if problem.code != Status.E_FORKED:
                raise

    def __del__(self) -> None:
        gate = getattr(self, "_gate", None)
        if gate is None or not gate.is_open() or gate.forked():
            return
        warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self)
        if _calls.in_callback():
            # The collector may run on the callback thread, which cannot wait for itself.
            threading.Thread(target=self.close, name="wimm-close").start()
        else:
            self.close()

    def __repr__(self) -> str:
        state = "open" if self._gate.is_open() else "closed"
        return f"<wimm.Engine {state} at {id(self):#x}>"

    @property
    def closed(self) -> bool:
        return not self._gate.is_open()

    def close(self) -> None:
        """Close everything that belongs to the engine, then the engine. Operations still open
        settle, with E_CLOSED or as they ended. Takes about 2 s at most, and is refused inside a
        callback."""
        self._gate.check_fork()
        if _calls.in_callback():
            raise error(Status.E_IN_CALLBACK, "an engine cannot be closed inside a callback")
        with self._closing:  # a second close waits for the first
            handle = self._gate.shut()
            if handle is None:
                return
            problems = self._close_children(handle)
            status = self._lib.wimm_engine_close(ctypes.byref(ctypes.c_void_p(handle)))
            _open_engines.discard(self)
            _calls.forget(self._event_number)
            for _, target in _calls.remembered():
                operation = getattr(target, "__self__", None)
                if isinstance(operation, Operation) and operation.engine is self:
                    operation._abandon()
            _native.check(status)
            if problems:
                raise problems[0]

    def _close_children(self, handle: int) -> list[Error]:
        """The latest first: what was opened later may use what was opened before."""
        problems = []
        for child in reversed(list(self._children)):
            try:
                own = child._take()
                if own is not None:
                    child._close_within(handle, own)
            except Error as problem:
                problems.append(problem)
        return problems

    # --- memory ---

    def register(self, memory: Any, *, local_only: bool = False,
                 strict_order: bool = False) -> Region:
        """Make memory usable for transfers: a buffer, an object with __dlpack__ or
        __cuda_array_interface__ (of the host or of CUDA), or a tuple (address, length, device) with
        device "cpu", "cuda" or "cuda:N". Read-only memory needs local_only: no peer may write then.
        strict_order is for memory whose content is polled."""
        return Region(self, memory_of(memory, writable=not local_only, cuda=True), local_only,
                      strict_order)

    def open_remote(self, desc: bytes) -> RemoteRegion:
        """Take a peer's descriptor into use. The peer is added if it is new."""
        return RemoteRegion(self, desc)

    # --- peers ---

    @property
    def address(self) -> Address:
        """What peers need to reach this engine: bytes, with a text form by str()."""
        addr = wimm_net_addr()
        with self._gate as handle:
            _native.check(self._lib.wimm_main_address(handle, ctypes.byref(addr)))
        return from_c(addr)

    def add_peer(self, address: bytes | str, *, peer_timeout: float | None = None) -> int:
        """Name a peer and start connecting. Returns its number; what is submitted waits for it.
        `peer_timeout`: seconds of silence after which this peer counts as lost, None that of the
        engine, or what was said before."""
        raw = address if isinstance(address, bytes) else Address.parse(address)
        opts = _abi.wimm_peer_opts(
            size=ctypes.sizeof(_abi.wimm_peer_opts),
            peer_timeout_ms=-(-_calls.microseconds("peer_timeout", peer_timeout) // 1000))
        out = ctypes.c_uint64()
        with self._gate as handle:
            _native.check(self._lib.wimm_add_peer(handle, ctypes.byref(to_c(raw)),
                                                  ctypes.byref(opts), ctypes.byref(out)))
        return out.value

    def remove_peer(self, peer: int) -> None:
        """End the session with a peer. Its open operations settle with E_CLOSED."""
        with self._gate as handle:
            _native.check(self._lib.wimm_remove_peer(handle, _calls.unsigned("peer", peer)))

    def fence_peer(self, peer: int, *, now: bool = False, deadline: float | None = None,
                   block: bool | None = None) -> Operation:
        """Get back all memory that a peer may write to, and end its session. The peer is asked to
        stop; where it has not said so after half the time, or with now=True at once, its paths are
        revoked. `deadline` is for the answer, None the peer time-out.

        The answer is in the operation's `fence`. CONFIRMED and FENCED: not one byte of the peer's
        lands any more. QUARANTINED, with the error E_QUARANTINED: leave alone what the peer was
        granted, and fence it again."""
        opts = _abi.wimm_fence_opts(size=ctypes.sizeof(_abi.wimm_fence_opts),
                                    flags=_abi.WIMM_FENCE_NOW if now else 0)
        peer = _calls.unsigned("peer", peer)

        def call(handle: int, microseconds: int, on_done: Any, out: Any) -> int:
            opts.deadline_us = microseconds
            return int(self._lib.wimm_fence_peer(handle, peer, ctypes.byref(opts), on_done, out))

        return self._submit("fence", call, (), deadline, block)

    def peer_error(self, peer: int) -> PeerError | None:
        """The last failure of a peer's session, or None where there was none."""
        info = _abi.wimm_error_info()
        with self._gate as handle:
            status = self._lib.wimm_peer_last_error(handle, _calls.unsigned("peer", peer),
                                                    ctypes.byref(info))
            if status == Status.E_NOT_FOUND:
                return None
            _native.check(status)
        return PeerError(as_status(info.status), info.vendor_code,
                         info.text.decode(errors="replace"))

    def peer_info(self, peer: int) -> PeerInfo:
        """What is known of a peer, also of one that was lost lately."""
        info = _abi.wimm_peer_info(size=ctypes.sizeof(_abi.wimm_peer_info))
        with self._gate as handle:
            _native.check(self._lib.wimm_peer_get_info(handle, _calls.unsigned("peer", peer),
                                                       ctypes.byref(info)))
        return PeerInfo(bool(info.up), info.paths_up, bool(info.same_host), bytes(info.instance),
                        info.way.decode(errors="replace"),
                        as_member(ProgressMode, info.progress))

    def peer_group(self, peers: Iterable[int]) -> PeerGroup:
        """A fixed list of peers for scatter() and barrier(), looked up once."""
        return PeerGroup(self, peers)

    def open_barrier(self, regions: Iterable[RemoteRegion], imms: tuple[int, int], *,
                     group: PeerGroup | None = None) -> Barrier:
        """A barrier among this engine and the owners of the regions, who open it alike."""
        return Barrier(self, regions, imms, group)

    # --- callbacks ---

    def recvs(self, callback: Callable[[int, bytes], object], *, count: int = 16,
              length: int = 65536, block: bool | None = None) -> Receiver:
        """Call callback(peer, data) with each message from any peer. `count` buffers of `length`
        bytes take them; with none free senders wait, and nothing is lost."""
        return Receiver(self, callback, count, length, block)

    def watcher(self, callback: Callable[[int, int], object]) -> Watcher:
        """A 64-bit word, 0 at first, whose changes are reported as callback(old, new). Values in
        between may be skipped, the last one never."""
        return Watcher(self, callback)

    def mirror(self, imm: int, word: Any = None) -> Mirror:
        """A word that holds how many immediates of a value have arrived in all, taken or not.
        word: 8 bytes of a buffer, at a multiple of 8; without it the mirror has its own."""
        return Mirror(self, imm, word)

    # --- progress and counters ---

    def progress(self) -> bool:
        """Of a caller-driven engine: take a turn, run what is due. Returns whether it was busy."""
        busy = ctypes.c_int()
        with self._gate as handle:
            _native.check(self._lib.wimm_progress(handle, ctypes.byref(busy)))
        return bool(busy.value)

    def progress_wait(self, timeout: float | None = None) -> None:
        """Of a caller-driven engine: sleep until there is something to do, or for `timeout` s."""
        wait_us = _calls.U64_MAX if timeout is None else max(0, int(min(timeout, 1e12) * 1e6))
        with self._gate as handle:
            _native.check(self._lib.wimm_progress_wait(handle, wait_us))

    def fileno(self) -> int:
        """Of a caller-driven engine: a descriptor for select() and asyncio's add_reader(). Call
        progress() until it returns False, then progress_wait(0), before waiting for it."""
        with self._gate as handle:
            descriptor: int = self._lib.wimm_progress_fd(handle)
        if descriptor < 0:
            raise error(Status.E_INVAL, "only a caller-driven engine has a descriptor")
        return descriptor

    def _turn(self, seconds: float | None) -> None:
        """One turn for somebody who waits; at most 50 ms, so that signals are served."""
        if not self.progress():
            self.progress_wait(0.05 if seconds is None else min(seconds, 0.05))

    def stats(self) -> Stats:
        """The engine's counters."""
        stats = _abi.wimm_engine_stats(size=ctypes.sizeof(_abi.wimm_engine_stats))
        with self._gate as handle:
            _native.check(self._lib.wimm_engine_get_stats(handle, ctypes.byref(stats)))
        return Stats(*(getattr(stats, name) for name in Stats._fields))


class _OpenEngines:
    """Closes what is still open when the interpreter exits: afterwards a callback would run into an
    interpreter that is gone. Registered with atexit when the first engine opens."""

    def __init__(self) -> None:
        self._engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._registered = False
        self._exiting = False

    def admit(self) -> None:
        if self._exiting:
            raise error(Status.E_CLOSED, "the interpreter is exiting")
        if not self._registered:
            self._registered = True
            atexit.register(self._close_all)

    def add(self, engine: Engine) -> None:
        self._engines.add(engine)

    def discard(self, engine: Engine) -> None:
        self._engines.discard(engine)

    def _close_all(self) -> None:
        self._exiting = True
        for engine in list(self._engines):
            try:
                engine.close()
            except Error as problem:
                if problem.code != Status.E_FORKED:
                    _calls.report(engine)


_open_engines = _OpenEngines()


def _event_target(callback: Callable[[PeerEvent], object]) -> Callable[..., None]:
    def target(pointer: Any) -> None:
        event = pointer.contents
        kind: Any = as_member(PeerEventKind, event.kind)
        callback(PeerEvent(kind, as_status(event.cause), event.peer, event.nic_index,
                           bytes(event.instance), (event.text or b"").decode(errors="replace")))

    return _calls.guarded(target, callback)


def _milliseconds(name: str, seconds: float) -> int:
    if seconds < 0:
        raise ValueError(f"{name} is {seconds} s: it must be positive, or 0 for the setting's")
    return _calls.unsigned(name, max(int(seconds * 1000), 1 if seconds > 0 else 0), _calls.U32_MAX)
