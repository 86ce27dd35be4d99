# SPDX-License-Identifier: Apache-2.0
"""Peer groups, barriers, receivers of messages, watched words and mirrors of counters."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any, Callable, Iterable

from . import _abi, _calls, _native
from ._abi import Status
from ._buffers import memory_of
from ._child import Child
from .operation import Done, Operation

if TYPE_CHECKING:
    from .engine import Engine
    from .region import RemoteRegion


class PeerGroup(Child):
    """A fixed list of peers, looked up once."""

    def __init__(self, engine: Engine, peers: Iterable[int]) -> None:
        ids = [_calls.unsigned("peer", peer) for peer in peers]
        out = ctypes.c_void_p()
        with engine._gate as handle:
            _native.check(engine._lib.wimm_add_peer_group(
                handle, (ctypes.c_uint64 * len(ids))(*ids), len(ids), ctypes.byref(out)))
            self.peers = tuple(ids)
            super().__init__(engine, out.value or 0)

    def close(self) -> None:
        """Give it back. Operations already accepted go on."""
        self._close_by(self._close_within)

    def _close_within(self, handle: int, own: int) -> None:
        _native.check(self._engine._lib.wimm_remove_peer_group(handle, own))


class Barrier(Child):
    """Rounds among this engine and the owners of `regions`, which open it alike.

    It alternates two immediate values, which must be used for nothing else.
    """

    def __init__(self, engine: Engine, regions: Iterable[RemoteRegion], imms: tuple[int, int],
                 group: PeerGroup | None) -> None:
        regions = tuple(regions)
        first, second = (_calls.unsigned("imm", imm, _calls.U32_MAX) for imm in imms)
        out = ctypes.c_void_p()
        self._lock = threading.Lock()  # so that nobody enters what is being closed
        with engine._gate as handle:
            targets = (ctypes.c_void_p * len(regions))(*(region._use() for region in regions))
            args = _abi.wimm_barrier_args(size=ctypes.sizeof(_abi.wimm_barrier_args),
                                          group=group._use() if group is not None else None,
                                          dst=targets, count=len(regions))
            _native.check(engine._lib.wimm_barrier_open(
                handle, ctypes.byref(args), (ctypes.c_uint32 * 2)(first, second),
                ctypes.byref(out)))
            self._keep = (regions, group)
            super().__init__(engine, out.value or 0)

    def enter(self, *, deadline: float | None = None, block: bool | None = None) -> Operation:
        """Enter the next round. Done when all have entered it."""

        def call(handle: int, microseconds: int, on_done: Any, out: Any) -> int:
            with self._lock:
                status: int = self._engine._lib.wimm_barrier_enter(self._use(), microseconds,
                                                                   on_done)
                return status

        return self._engine._submit("barrier round", call, (self,), deadline, block)

    def close(self) -> None:
        """Close it. A round under way is cancelled."""
        self._close_by(self._close_within)

    def _take(self) -> int | None:
        with self._lock:
            return super()._take()

    def _close_within(self, handle: int, own: int) -> None:
        _native.check(self._engine._lib.wimm_barrier_close(own))


class Receiver(Child):
    """Buffers for messages from any peer, and who is called with each."""

    def __init__(self, engine: Engine, callback: Callable[[int, bytes], object], count: int,
                 length: int, block: bool | None) -> None:
        _calls.unsigned("count", count, 65536)
        _calls.unsigned("length", length, 1 << 40)
        self._callback = callback
        self._memory = ctypes.create_string_buffer(max(1, count * length))
        self._out_there = count
        base = ctypes.addressof(self._memory)
        buffers = (_abi.wimm_recv_buffer * count)(*(
            _abi.wimm_recv_buffer(base + index * length, length) for index in range(count)))
        # Settles when the last buffer has come back.
        self._ended = Operation(engine, "receiver", (self,))
        number = _calls.remember(self._on_received)
        out = ctypes.c_uint64()

        def call(handle: int) -> int:
            status: int = engine._lib.wimm_submit_recvs(
                handle, buffers, count, _calls.entry_points().received, number, ctypes.byref(out))
            return status

        try:
            engine._attempt(call, None, block)
        except BaseException:
            self._ended._drop()
            _calls.forget(number)
            raise
        self._number = number
        super().__init__(engine, out.value)

    def close(self, wait: bool = True) -> None:
        """Take the buffers back. No callback comes after this, unless it is called with wait=False
        or inside a callback."""
        if self._close_by(self._cancel):
            self._wait_unless_in_callback(self._ended, wait)

    def _cancel(self, handle: int, own: int) -> bool:
        status = self._engine._lib.wimm_cancel(handle, own)
        if status not in (Status.OK, Status.E_NOT_FOUND):
            raise _native.refused(status)
        return True

    def _close_within(self, handle: int, own: int) -> None:
        self._cancel(handle, own)

    def _on_received(self, pointer: Any) -> None:
        received = pointer.contents
        if received.status == Status.OK:
            data = ctypes.string_at(received.addr, received.len_bytes)
            try:
                self._callback(received.peer, data)
            except BaseException:
                _calls.report(self._callback)
            return
        self._out_there -= 1
        if self._out_there == 0:
            _calls.forget(self._number)
            self._ended._settle(received.status, Done(0, 0, 0, 0, 0, 0))


class Watcher(Child):
    """A 64-bit word whose changes are reported: callback(old, new)."""

    def __init__(self, engine: Engine, callback: Callable[[int, int], object]) -> None:
        out = ctypes.c_void_p()
        self._lock = threading.Lock()  # so that nobody writes to a word that is being freed
        self._number = _calls.remember(self._on_change)
        self._callback = callback
        try:
            with engine._gate as handle:
                _native.check(engine._lib.wimm_alloc_uvm_watcher(
                    handle, _calls.entry_points().watched, self._number, ctypes.byref(out)))
                super().__init__(engine, out.value or 0)
        except BaseException:
            _calls.forget(self._number)
            raise

    def add(self, amount: int = 1) -> int:
        """Add to the word. Returns its new value."""
        _calls.unsigned("amount", amount)
        self._engine._gate.check_fork()
        with self._lock:
            value: int = self._engine._lib.wimm_uvm_watcher_add(self._use(), amount)
            return value

    @property
    def value(self) -> int:
        """The word as it is now."""
        return self.add(0)

    @property
    def address(self) -> int:
        """Where the word lies, for kernels and other writers. Good until close()."""
        self._engine._gate.check_fork()
        with self._lock:
            word = self._engine._lib.wimm_uvm_watcher_word(self._use())
        return ctypes.cast(word, ctypes.c_void_p).value or 0

    def arm(self, armed: bool = True) -> None:
        """Start or stop looking. What changes meanwhile is reported after arming."""
        with self._engine._gate, self._lock:
            _native.check(self._engine._lib.wimm_uvm_watcher_arm(self._use(), int(armed)))

    def close(self) -> None:
        """Free the word. Its last change is reported first, except inside a callback."""
        self._close_by(self._close_within)

    def _take(self) -> int | None:
        with self._lock:
            return super()._take()

    def _close_within(self, handle: int, own: int) -> None:
        # Not under the lock: this waits for the callback, which may use the watcher.
        try:
            _native.check(self._engine._lib.wimm_free_uvm_watcher(own))
        finally:
            _calls.forget(self._number)

    def _on_change(self, old: int | None, new: int | None) -> None:
        try:
            self._callback(old or 0, new or 0)
        except BaseException:
            _calls.report(self._callback)


class Mirror(Child):
    """A 64-bit word that holds how many immediates of one value have arrived in all.

    The bytes of what it counts are there before it counts, so it may be polled: by Python, by
    another process that shares the memory, or by whatever else can read it.
    """

    def __init__(self, engine: Engine, imm: int, word: Any) -> None:
        self.imm = _calls.unsigned("imm", imm, _calls.U32_MAX)
        memory = memory_of(word if word is not None else (ctypes.c_uint64 * 1)(), True)
        if memory.length < 8:
            raise ValueError(f"a mirror takes 8 bytes, this memory has {memory.length}")
        self._keep = memory.keep
        self._word = ctypes.cast(memory.address, ctypes.POINTER(ctypes.c_uint64))
        with engine._gate as handle:
            _native.check(engine._lib.wimm_mirror_enable(handle, self.imm, self._word))
            super().__init__(engine, self.imm)

    @property
    def value(self) -> int:
        """The word as it is now; after close() the last one."""
        value: int = self._engine._lib.wimm_mirror_load(self._word)
        return value

    def close(self) -> None:
        """Write the word no more."""
        self._close_by(self._close_within)

    def _close_within(self, handle: int, own: int) -> None:
        _native.check(self._engine._lib.wimm_mirror_disable(handle, own, None))
