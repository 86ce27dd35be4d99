# SPDX-License-Identifier: Apache-2.0
"""The half of Engine that moves bytes and counts immediates."""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, NamedTuple

from . import _abi, _calls, _native
from ._abi import Status
from ._buffers import indices_of, memory_of
from ._cuda import handle_of
from .errors import error
from .operation import Operation

if TYPE_CHECKING:
    from .objects import PeerGroup
    from .region import Region, RemoteRegion

# How long a blocking submission waits for room before it looks again, growing from first to last.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 20e-6, 5e-3


class Pages(NamedTuple):
    """Pages of one region: page i lies at offset + indices[i] * stride (bytes)."""

    indices: Any            #: uint32 buffer (numpy, array, memoryview) or any integers
    stride: int | None = None  #: None: as long as the pages are
    offset: int = 0


class Slice(NamedTuple):
    """One entry of a scatter: bytes of the source to one peer's region."""

    dst: RemoteRegion
    src_offset: int
    dst_offset: int
    length: int


class Transfers:
    """Submissions. Each returns an Operation once it is accepted.

    deadline  seconds from now after which it fails with E_TIMEOUT; None: never
    block     what to do when the queue is full: True waits for room, False raises Again; None
              waits, except inside a callback
    imm       the immediate, 0 to 2^32 - 1, or None for none
    confirmed done only when the peer's engine has counted it; needs an immediate
    nic       index of the one local NIC to use
    stream    a write from memory on CUDA begins when all that this stream holds by now is done,
              and holds it up in nothing: a handle, an object of torch, CuPy or cuda.core, or -1
              for no stream. None asks the tensor's or array's owner, by __dlpack__(stream=...) or
              the stream of its __cuda_array_interface__; a tuple's is none
    """

    _gate: _calls.Gate
    _lib: ctypes.CDLL
    caller_driven: bool

    def _turn(self, seconds: float | None) -> None:
        raise NotImplementedError

    def write(self, src: Region, dst: RemoteRegion, *, src_offset: int = 0, dst_offset: int = 0,
              length: int | None = None, imm: int | None = None, confirmed: bool = False,
              nic: int | None = None, deadline: float | None = None,
              block: bool | None = None, stream: Any = None) -> Operation:
        """Write `length` bytes (None: all from src_offset on) of a region into a peer's region.
        The source must not change until the operation has settled."""
        if length is None:
            length = max(0, src.length - src_offset)
        args = _abi.wimm_write(
            size=ctypes.sizeof(_abi.wimm_write), flags=_flags(imm, confirmed, nic),
            imm=_imm(imm), nic_index=_nic(nic),
            src_offset_bytes=_calls.unsigned("src_offset", src_offset),
            dst_offset_bytes=_calls.unsigned("dst_offset", dst_offset),
            len_bytes=_calls.unsigned("length", length))
        _order(args, src, stream)

        def call(handle: int, microseconds: int, on_done: Any, out: Any) -> int:
            args.src, args.dst, args.deadline_us = src._use(), dst._use(), microseconds
            return int(self._lib.wimm_submit_single_write(handle, ctypes.byref(args), on_done, out))

        return self._submit("write", call, (src, dst), deadline, block)

    def write_pages(self, src: Region, src_pages: Any, dst: RemoteRegion, dst_pages: Any, *,
                    page_bytes: int, imm: int | None = None, imm_once: bool = False,
                    confirmed: bool = False, nic: int | None = None,
                    deadline: float | None = None, block: bool | None = None,
                    stream: Any = None) -> Operation:
        """Write source page i to destination page i, for all i. Each page list is a Pages, or its
        indices alone: a uint32 buffer is handed on as it is, other integers are copied. One
        immediate is counted a page, or with imm_once one in all."""
        _calls.unsigned("page_bytes", page_bytes)
        from_pages, keep_from = _pages(src_pages, page_bytes)
        to_pages, keep_to = _pages(dst_pages, page_bytes)
        if from_pages.count != to_pages.count:
            raise ValueError(f"{from_pages.count} source pages and {to_pages.count} destination "
                             f"pages: the lists must be equally long")
        flags = _flags(imm, confirmed, nic) | (_abi.WIMM_IMM_ONCE if imm_once else 0)
        args = _abi.wimm_paged_writes(
            size=ctypes.sizeof(_abi.wimm_paged_writes), flags=flags, imm=_imm(imm),
            nic_index=_nic(nic), src_pages=from_pages, dst_pages=to_pages,
            page_len_bytes=page_bytes)
        _order(args, src, stream)

        def call(handle: int, microseconds: int, on_done: Any, out: Any) -> int:
            args.src, args.dst, args.deadline_us = src._use(), dst._use(), microseconds
            return int(self._lib.wimm_submit_paged_writes(handle, ctypes.byref(args), on_done, out))

        operation = self._submit("paged write", call, (src, dst), deadline, block)
        del keep_from, keep_to  # the call has copied them
        return operation

    def scatter(self, src: Region, entries: Iterable[Slice | tuple[RemoteRegion, int, int, int]], *,
                group: PeerGroup | None = None, imm: int | None = None, confirmed: bool = False,
                nic: int | None = None, deadline: float | None = None,
                block: bool | None = None, stream: Any = None) -> Operation:
        """Write slices of one region to many peers: (dst, src_offset, dst_offset, length) each."""
        slices = tuple(Slice(*entry) for entry in entries)
        table = (_abi.wimm_scatter_entry * len(slices))()
        for row, entry in zip(table, slices):
            row.src_offset_bytes = _calls.unsigned("src_offset", entry.src_offset)
            row.dst_offset_bytes = _calls.unsigned("dst_offset", entry.dst_offset)
            row.len_bytes = _calls.unsigned("length", entry.length)
        args = _abi.wimm_scatter(
            size=ctypes.sizeof(_abi.wimm_scatter), flags=_flags(imm, confirmed, nic),
            imm=_imm(imm), nic_index=_nic(nic), entries=table, count=len(slices))
        _order(args, src, stream)

        def call(handle: int, microseconds: int, on_done: Any, out: Any) -> int:
            for row, entry in zip(table, slices):
                row.dst = entry.dst._use()
            args.src, args.deadline_us = src._use(), microseconds
            args.group = group._use() if group is not None else None
            return int(self._lib.wimm_submit_scatter(handle, ctypes.byref(args), on_done, out))

        return self._submit("scatter", call, (src, slices, group), deadline, block)

    def barrier(self, regions: Iterable[RemoteRegion], imm: int, *, group: PeerGroup | None = None,
                confirmed: bool = False, deadline: float | None = None,
                block: bool | None = None) -> Operation:
        """Send one immediate, without payload, to the owner of each region. What they send is
        waited for with expect(); for rounds of both see open_barrier()."""
        targets = tuple(regions)
        table = (ctypes.c_void_p * len(targets))()
        args = _abi.wimm_barrier_args(
            size=ctypes.sizeof(_abi.wimm_barrier_args),
            flags=_abi.WIMM_CONFIRMED if confirmed else 0, imm=_imm(imm), dst=table,
            count=len(targets))

        def call(handle: int, microseconds: int, on_done: Any, out: Any) -> int:
            for index, region in enumerate(targets):
                table[index] = region._use()
            args.group = group._use() if group is not None else None
            args.deadline_us = microseconds
            return int(self._lib.wimm_submit_barrier(handle, ctypes.byref(args), on_done, out))

        return self._submit("barrier", call, (targets, group), deadline, block)

    def send(self, peer: int, data: Any, *, deadline: float | None = None,
             block: bool | None = None) -> Operation:
        """Send a message, of any contiguous buffer; it is copied. Done when the peer has put it
        into one of its receive buffers. Messages may overtake each other."""
        memory = memory_of(data, writable=False)
        args = _abi.wimm_send(size=ctypes.sizeof(_abi.wimm_send),
                              peer=_calls.unsigned("peer", peer),
                              data=memory.address, len_bytes=memory.length)

        def call(handle: int, microseconds: int, on_done: Any, out: Any) -> int:
            args.deadline_us = microseconds
            return int(self._lib.wimm_submit_send(handle, ctypes.byref(args), on_done, out))

        return self._submit("message", call, (memory,), deadline, block)

    def expect(self, imm: int, n: int, *, owes: Mapping[int, int] | None = None,
               deadline: float | None = None, block: bool | None = None) -> Operation:
        """Done when n immediates of a value have arrived, which are then taken away. `owes` says
        how many each peer contributes: losing one that still owes fails this with E_PEER_LOST."""
        parts = [(_calls.unsigned("peer", peer), _calls.unsigned("count", count))
                 for peer, count in (owes or {}).items()]
        table = (_abi.wimm_owes * len(parts))(*(_abi.wimm_owes(*part) for part in parts))
        opts = _abi.wimm_expect_opts(size=ctypes.sizeof(_abi.wimm_expect_opts),
                                     owes=table if parts else None, owes_count=len(parts))
        imm, n = _imm(imm), _calls.unsigned("n", n)

        def call(handle: int, microseconds: int, on_done: Any, out: Any) -> int:
            opts.deadline_us = microseconds
            return int(self._lib.wimm_expect_imm_count(handle, imm, n, ctypes.byref(opts),
                                                       on_done, out))

        return self._submit("expectation", call, (), deadline, block)

    def poll_imm(self, imm: int) -> int:
        """How many immediates of a value have arrived and are not taken."""
        return self._count(self._lib.wimm_poll_imm, imm)

    def forget_imm(self, imm: int) -> int:
        """Drop what has arrived of a value. Returns how many that were."""
        return self._count(self._lib.wimm_forget_imm, imm)

    def retire_imm(self, imm: int, *, block: bool | None = None) -> Operation:
        """Done when no live session can still deliver a value: it may be used anew then."""
        imm = _imm(imm)

        def call(handle: int, _microseconds: int, on_done: Any, out: Any) -> int:
            return int(self._lib.wimm_retire_imm(handle, imm, on_done, out))

        return self._submit("retirement", call, (), None, block)

    def _count(self, function: Any, imm: int) -> int:
        out = ctypes.c_uint64()
        with self._gate as handle:
            _native.check(function(handle, _imm(imm), ctypes.byref(out)))
        return out.value

    def _cancel(self, operation: int) -> bool:
        with self._gate as handle:
            status = self._lib.wimm_cancel(handle, operation)
            if status not in (Status.OK, Status.E_NOT_FOUND):
                raise _native.refused(status)
        return bool(status == Status.OK)

    @staticmethod
    def _on_done(operation: Operation) -> Any:
        """The on_done argument that settles an operation."""
        return ctypes.byref(_abi.wimm_on_done(_calls.entry_points().done, operation._number))

    def _submit(self, kind: str, call: Callable[[int, int, Any, Any], int],
                keep: tuple[object, ...], deadline: float | None,
                block: bool | None) -> Operation:
        """Submit with call(handle, microseconds left, on_done, out)."""
        _calls.microseconds("deadline", deadline)
        operation = Operation(self, kind, keep)  # type: ignore[arg-type]
        end = None if deadline is None else time.monotonic() + deadline
        on_done, out = self._on_done(operation), ctypes.c_uint64()

        def attempt(handle: int) -> int:
            left = None if end is None else max(1e-6, end - time.monotonic())
            return call(handle, _calls.microseconds("deadline", left), on_done, ctypes.byref(out))

        try:
            self._attempt(attempt, end, block)
        except BaseException:
            operation._drop()
            raise
        operation.id = out.value
        return operation

    def _attempt(self, call: Callable[[int], int], end: float | None, block: bool | None) -> None:
        """Call until there is room. Waiting happens here and not in C, so that a signal (Ctrl-C)
        is served and the engine can be closed meanwhile."""
        if block is None:
            block = not _calls.in_callback()
        elif block and _calls.in_callback():
            raise error(Status.E_IN_CALLBACK, "a callback cannot wait for room: use block=False")
        pause = _FIRST_PAUSE_S
        while True:
            with self._gate as handle:
                status = call(handle)
                if status == Status.OK:
                    return
                if status != Status.AGAIN or not block:
                    raise _native.refused(status)
            if end is not None and time.monotonic() >= end:
                raise error(Status.E_TIMEOUT, "the queue was full until the deadline")
            if self.caller_driven:
                self._turn(pause)
            else:
                time.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE_S)


def _imm(imm: int | None) -> int:
    return 0 if imm is None else _calls.unsigned("imm", imm, _calls.U32_MAX)


def _nic(nic: int | None) -> int:
    return 0 if nic is None else _calls.unsigned("nic", nic, _calls.U32_MAX)


def _flags(imm: int | None, confirmed: bool, nic: int | None) -> int:
    return ((_abi.WIMM_IMM if imm is not None else 0) | (_abi.WIMM_CONFIRMED if confirmed else 0)
            | (_abi.WIMM_PIN_NIC if nic is not None else 0))


def _order(args: Any, src: Region, stream: Any) -> None:
    """Let the write wait for what its source's content comes by."""
    handle = src._stream() if stream is None else handle_of(stream)
    if handle is not None:
        args.flags |= _abi.WIMM_AFTER_STREAM
        args.stream = handle


def _pages(pages: Any, page_bytes: int) -> tuple[_abi.wimm_pages, object]:
    given = pages if isinstance(pages, Pages) else Pages(pages)
    indices = indices_of(given.indices)
    stride = page_bytes if given.stride is None else given.stride
    return _abi.wimm_pages(indices.pointer, indices.number, _calls.unsigned("stride", stride),
                           _calls.unsigned("offset", given.offset)), indices
