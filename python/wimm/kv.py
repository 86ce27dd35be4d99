# SPDX-License-Identifier: Apache-2.0
"""KvCache transfer: a prefill process writes a prompt's K and V pages into those of a decode
process, layer by layer while it computes on.

The decode side calls Cache.receive() and gives the receiver's `request` to the prefill side, over
any channel. There Cache.send() takes it; Sender.bump() says that a layer's K and V are final.
"""

from __future__ import annotations

import builtins
import ctypes
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Sequence

from . import _abi, _calls, _native
from ._abi import KvKind, Status
from ._buffers import indices_of, memory_of
from ._child import Child
from .errors import error
from .operation import Operation

if TYPE_CHECKING:
    from .engine import Engine
    from .region import Region

__all__ = ["Cache", "Ended", "KvKind", "Layout", "Receiver", "Request", "Segment", "Sender",
           "Watch", "compare", "count", "segments", "unit_tokens"]


class Strides(NamedTuple):
    """Bytes from one layer, page, part (K to V), head and token to the next."""

    layer: int
    page: int
    part: int
    head: int
    token: int


@dataclass(frozen=True)
class Layout:
    """What one rank's cache looks like inside its region.

    kv_heads   of the whole model; this rank has those that tp and tp_rank give it
    elem_type  the application's number for the type of an element
    model_tag  the application's digest of what else must agree on both sides
    strides    None: without gaps, [layer][page][K, V][head][token][dimension]
    """

    layers: int
    kv_heads: int
    head_dim: int
    elem_bytes: int
    page_tokens: int
    pages: int
    tp: int = 1
    tp_rank: int = 0
    kind: KvKind = KvKind.GQA
    elem_type: int = 0
    model_tag: int = 0
    offset: int = 0
    strides: Strides | None = None

    @property
    def hash(self) -> int:
        """Of the fields that must agree on both sides."""
        value: int = _native.library().wimm_kv_layout_hash(ctypes.byref(_to_c(self)))
        return value

    @property
    def extent(self) -> int:
        """Bytes from the region's start to the end of the last page."""
        out = ctypes.c_uint64()
        _call(_native.library().wimm_kv_layout_extent, ctypes.byref(_to_c(self)), ctypes.byref(out))
        return out.value

    def packed(self) -> Layout:
        """The same with the strides written out."""
        return _from_c(_to_c(self))


class Segment(NamedTuple):
    """The heads that one decode rank gets from one prefill rank."""

    src_rank: int
    src_head: int    #: counted from the prefill rank's first
    dst_head: int    #: counted from the decode rank's first
    heads: int
    pieces: int      #: writes that the K, or the V, of a unit takes
    piece_bytes: int


class Ended(NamedTuple):
    """How a request ended well."""

    immediates: int    #: counted here, or accepted by the decode side
    bytes: int         #: payload of these
    first_token: int   #: of the tail, on the decode side
    tail: builtins.bytes | None  #: what came beside it


@dataclass(frozen=True)
class Request:
    """What a request says."""

    data: bytes
    peer: int | None    #: who sent it, where it came as a message
    id: int
    imm: int
    tokens: int         #: of the whole prompt
    first_token: int    #: the pages begin with it
    page_count: int
    tail: bool          #: whether a tail is wanted
    tail_room: int
    note: bytes         #: the application's own
    decode: Layout
    prefill: Layout     #: as the decode side believes it
    group_units: int = 1  #: units whose like pieces share an immediate

    @classmethod
    def parse(cls, data: bytes, peer: int | None = None) -> Request:
        """Read a request that came over a channel of the application's own."""
        out = _abi.wimm_kv_request(size=ctypes.sizeof(_abi.wimm_kv_request))
        raw = ctypes.create_string_buffer(data, len(data))
        status = _native.library().wimm_kv_request_parse(raw, len(data), ctypes.byref(out))
        if status != Status.OK:
            raise error(status, "these bytes are no KvCache request of this version")
        note = ctypes.string_at(out.note, out.note_bytes) if out.note_bytes else b""
        return cls(data, peer, out.id, out.imm, out.tokens, out.first_token, out.page_count,
                   bool(out.tail), out.tail_room_bytes, note, _from_c(out.decode),
                   _from_c(out.prefill), out.group_units)


def compare(prefill: Layout, decode: Layout) -> None:
    """Raise Error, naming the first field that differs, where pages cannot go between them."""
    _call(_native.library().wimm_kv_compare, ctypes.byref(_to_c(prefill)),
          ctypes.byref(_to_c(decode)))


def segments(prefill: Layout, decode: Layout) -> list[Segment]:
    """What decode.tp_rank gets from whom."""
    room = decode.kv_heads
    table, found = (_abi.wimm_kv_segment * room)(), ctypes.c_uint32()
    _call(_native.library().wimm_kv_map, ctypes.byref(_to_c(prefill)), ctypes.byref(_to_c(decode)),
          table, room, ctypes.byref(found))
    return [Segment(row.src_rank, row.src_head, row.dst_head, row.heads, row.pieces,
                    row.piece_bytes) for row in table[:found.value]]


def unit_tokens(prefill: Layout, decode: Layout) -> int:
    """Tokens of a unit, which pages of both sides are whole numbers of."""
    value: int = _native.library().wimm_kv_unit_tokens(ctypes.byref(_to_c(prefill)),
                                                       ctypes.byref(_to_c(decode)))
    return value


def count(prefill: Layout, decode: Layout, pages: int, *, tail: bool = False,
          src_rank: int | None = None) -> int:
    """Immediates that decode.tp_rank counts for a request of so many pages (units, where pages
    differ in size); of one prefill rank, if given."""
    out = ctypes.c_uint64()
    _call(_native.library().wimm_kv_count, ctypes.byref(_to_c(prefill)),
          ctypes.byref(_to_c(decode)), _calls.unsigned("pages", pages), int(tail),
          _abi.WIMM_KV_ALL_RANKS if src_rank is None
          else _calls.unsigned("src_rank", src_rank, _calls.U32_MAX), ctypes.byref(out))
    return out.value


class Cache(Child):
    """The pages of one rank on one engine.

    max_requests  open at a time
    imm           the first of max_requests immediates that nobody else on this engine uses
    tail_room     longest tail, in bytes, beside its first token
    messages      buffers for messages, which failures of the other side come in. 0: the application
                  receives messages itself and hands them to take_message()
    on_request    called with each Request that comes as a message, on the callback thread
    """

    def __init__(self, engine: Engine, region: Region, layout: Layout, *, max_requests: int = 64,
                 imm: int = 0, tail_room: int = 0, messages: int = 16,
                 on_request: Callable[[Request], object] | None = None) -> None:
        self.layout = layout.packed()
        opts = _abi.wimm_kv_cache_opts(
            size=ctypes.sizeof(_abi.wimm_kv_cache_opts),
            layout=ctypes.pointer(_to_c(self.layout)),
            max_requests=_calls.unsigned("max_requests", max_requests, _calls.U32_MAX),
            imm_first=_calls.unsigned("imm", imm, _calls.U32_MAX),
            tail_room_bytes=_calls.unsigned("tail_room", tail_room),
            messages=_calls.unsigned("messages", messages, _calls.U32_MAX))
        self._number = 0
        if on_request is not None:
            self._number = _calls.remember(_request_target(on_request))
            opts.on_request = _entries().request
            opts.context = self._number
        out = ctypes.c_void_p()
        try:
            with engine._gate as handle:
                opts.region = region._use()
                _call(engine._lib.wimm_kv_cache_open, handle, ctypes.byref(opts), ctypes.byref(out))
                super().__init__(engine, out.value or 0)
        except BaseException:
            _calls.forget(self._number)
            raise
        self._region = region

    def receive(self, tokens: int, pages: Any, *, first_token: int = 0,
                prefill: Layout | None = None, tail: bool = True,
                peers: Sequence[int] | None = None, note: bytes = b"",
                deadline: float | None = None, group_units: int = 0) -> Receiver:
        """Expect a prompt of `tokens` tokens in these pages, the first of which takes first_token.

        prefill  the other side's layout; None: like this one
        peers    the prefill ranks in order: losing one that still owes fails the request at once
        note     bytes for the prefill side, in the request
        group_units  1: an immediate for each unit and piece; more: one for like pieces of so many
                     units, which are merged and leave together; 0: as the cost says
        """
        return Receiver(self, tokens, pages, first_token, prefill, tail, peers, note, deadline,
                        group_units)

    def send(self, request: Request | bytes, pages: Any = None, *, chunk_tokens: int = 0,
             computed_token: int = 0, watch: Watch | None = None, watch_value: int | None = None,
             at_end: bool = False, deadline: float | None = None) -> Sender:
        """Serve a request from these pages: from the one that holds its first_token on. Without
        pages, Sender.chunk() says chunk by chunk what is computed next, and where it lies.

        chunk_tokens    tokens that are computed at a time; 0: all at once
        computed_token  the first that is computed: those before it are final already
        watch           a word that others follow too; watch_value: its value before the first step
        at_end          send nothing before the last step
        """
        data = request.data if isinstance(request, Request) else bytes(request)
        return Sender(self, data, pages, chunk_tokens, computed_token, watch, watch_value, at_end,
                      deadline)

    def watch(self) -> Watch:
        """A word for several senders to follow."""
        return Watch(self)

    def take_message(self, peer: int, data: bytes) -> bool:
        """Hand over a message of a pool of the application's own. Returns whether it was one of
        this cache's."""
        raw = ctypes.create_string_buffer(data, len(data))
        with self._engine._gate:
            status = self._engine._lib.wimm_kv_cache_message(
                self._use(), _calls.unsigned("peer", peer), raw, len(data))
        return bool(status == Status.OK)

    def close(self) -> None:
        """Give it up, before its region. Open requests end with E_CLOSED."""
        self._close_by(self._close_within)

    def _close_within(self, handle: int, own: int) -> None:
        try:
            _native.check(self._engine._lib.wimm_kv_cache_close(
                ctypes.byref(ctypes.c_void_p(own))))
        finally:
            _calls.forget(self._number)


class _Ending(Operation):
    """The one report of a sender or a receiver."""

    def _on_done(self, pointer: Any) -> None:
        done = pointer.contents
        _calls.forget(self._number)
        self._keep = ()
        if done.status == Status.OK:
            tail = ctypes.string_at(done.tail, done.tail_bytes) if done.tail else None
            self.set_result(Ended(done.immediates, done.bytes, done.first_token, tail))
        else:
            self.set_exception(error(done.status, (done.text or b"").decode(errors="replace")))


class _Side(Child):
    """What senders and receivers have in common."""

    ended: Operation  #: the future of its end

    def __init__(self, cache: Cache, kind: str, opts: Any, opener: Any, *keep: object) -> None:
        engine = cache.engine
        self._cache = cache
        self._lock = threading.Lock()  # so that nobody uses a handle that is being closed
        self.ended = _Ending(engine, kind, (cache, *keep))
        opts.fn = _entries().done
        opts.context = self.ended._number
        out = ctypes.c_void_p()
        try:
            with engine._gate:
                _call(opener, cache._use(), ctypes.byref(opts), ctypes.byref(out))
                super().__init__(engine, out.value or 0)
        except BaseException:
            self.ended._drop()
            raise

    def result(self, timeout: float | None = None) -> Ended:
        """Wait for the end. Raises Error as it failed."""
        ended: Any = self.ended.result(timeout)
        assert isinstance(ended, Ended)
        return ended

    def done(self) -> bool:
        """Whether it has ended."""
        return self.ended.done()

    def _take(self) -> int | None:
        with self._lock:
            return super()._take()


class Receiver(_Side):
    """A request on the decode side. `request` is for every prefill rank; result() waits until every
    page and the tail are readable here."""

    def __init__(self, cache: Cache, tokens: int, pages: Any, first_token: int,
                 prefill: Layout | None, tail: bool, peers: Sequence[int] | None, note: bytes,
                 deadline: float | None, group_units: int = 0) -> None:
        indices = indices_of(pages)
        ids = [_calls.unsigned("peer", peer) for peer in peers or ()]
        self._arrived = (ctypes.c_uint8 * indices.number)()
        raw_note = memory_of(note, writable=False) if note else None
        opts = _abi.wimm_kv_receive_opts(
            size=ctypes.sizeof(_abi.wimm_kv_receive_opts),
            prefill=ctypes.pointer(_to_c(prefill)) if prefill is not None else None,
            tokens=_calls.unsigned("tokens", tokens),
            first_token=_calls.unsigned("first_token", first_token),
            pages=indices.pointer, page_count=indices.number, tail=int(tail),
            peer_count=len(ids), peers=(ctypes.c_uint64 * len(ids))(*ids) if ids else None,
            deadline_us=_calls.microseconds("deadline", deadline),
            note=raw_note.address if raw_note else None,
            note_bytes=raw_note.length if raw_note else 0,
            group_units=_calls.unsigned("group_units", group_units), arrived=self._arrived)
        lib = cache.engine._lib
        super().__init__(cache, "kv receiver", opts, lib.wimm_kv_receiver_open, self._arrived)
        length = ctypes.c_uint64()
        data = lib.wimm_kv_receiver_request(self._use(), ctypes.byref(length))
        self.request: bytes = ctypes.string_at(data, length.value)
        self.count: int = lib.wimm_kv_receiver_count(self._use())  #: immediates it waits for

    def missing(self) -> list[int]:
        """Which of its pages are not here, by their places in the list: none after a good end; all
        after a bad one, until what give_up() returned has settled, then those that no sender has
        written, or of which nobody can say it. Pages behind a missing one are missing too."""
        return [place for place, here in enumerate(self._arrived) if not here]

    def close(self, wait: bool = True) -> None:
        """Give it up. Waits until no write of a live session can reach the pages any more; with
        wait=False, and inside a callback, that happens later."""
        quiet = self.give_up()
        if quiet is not None:
            self._wait_unless_in_callback(quiet, wait)

    def give_up(self) -> Operation | None:
        """Close it, and return what settles when no write of a live session can reach the pages
        any more; None where that is so already."""
        return self._close_by(self._give_up)

    def _give_up(self, _handle: int, own: int) -> Operation | None:
        quiet = Operation(self._engine, "end of a kv receiver", (self, self._cache))
        status = self._engine._lib.wimm_kv_receiver_close(
            ctypes.byref(ctypes.c_void_p(own)), self._engine._on_done(quiet))
        if status == Status.OK:
            return quiet
        quiet._drop()
        if status != Status.E_CLOSED:
            raise _native.refused(status)
        return None

    def _close_within(self, handle: int, own: int) -> None:
        status = self._engine._lib.wimm_kv_receiver_close(ctypes.byref(ctypes.c_void_p(own)), None)
        if status not in (Status.OK, Status.E_CLOSED):
            raise _native.refused(status)


class Sender(_Side):
    """A request on the prefill side: `steps` times bump(), in between chunk() and tail()."""

    def __init__(self, cache: Cache, data: bytes, pages: Any, chunk_tokens: int,
                 computed_token: int, watch: Watch | None, watch_value: int | None, at_end: bool,
                 deadline: float | None) -> None:
        indices = indices_of(() if pages is None else pages)
        raw = memory_of(data, writable=False)
        flags = (_abi.WIMM_KV_AT_END if at_end else 0) | (
            _abi.WIMM_KV_FROM_VALUE if watch_value is not None else 0) | (
            _abi.WIMM_KV_CHUNKS_TOLD if pages is None else 0)
        opts = _abi.wimm_kv_send_opts(
            size=ctypes.sizeof(_abi.wimm_kv_send_opts), flags=flags, request=raw.address,
            request_bytes=raw.length, pages=indices.pointer, page_count=indices.number,
            computed_token=_calls.unsigned("computed_token", computed_token),
            chunk_tokens=_calls.unsigned("chunk_tokens", chunk_tokens),
            watch=watch._use() if watch is not None else None,
            watch_value=_calls.unsigned("watch_value", watch_value or 0),
            deadline_us=_calls.microseconds("deadline", deadline))
        lib = cache.engine._lib
        super().__init__(cache, "kv sender", opts, lib.wimm_kv_sender_open)
        self._watch = watch

    @property
    def steps(self) -> int:
        """Chunks, those told so far, times layers."""
        with self._lock:
            value: int = self._engine._lib.wimm_kv_sender_steps(self._use())
            return value

    def chunk(self, end_token: int, pages: Any = ()) -> None:
        """Of a sender without pages: the next chunk makes tokens before end_token final. pages are
        the source of those that begin before it and were not told with an earlier chunk."""
        indices = indices_of(pages)
        with self._engine._gate, self._lock:
            _call(self._engine._lib.wimm_kv_sender_chunk, self._use(),
                  _calls.unsigned("end_token", end_token), indices.pointer, indices.number)

    def bump(self, steps: int = 1) -> int:
        """Say that the K and V of the next layer are final. Returns the word's new value."""
        _calls.unsigned("steps", steps)
        self._engine._gate.check_fork()
        with self._lock:
            value: int = self._engine._lib.wimm_kv_sender_bump(self._use(), steps)
            return value

    def tail(self, first_token: int, data: Any = b"") -> None:
        """Send the first token and whatever else decode wants to have; the bytes are copied."""
        memory = memory_of(data, writable=False) if len(data) else None
        with self._engine._gate, self._lock:
            status = self._engine._lib.wimm_kv_sender_tail(
                self._use(), _calls.unsigned("first_token", first_token, _calls.U32_MAX),
                memory.address if memory else None, memory.length if memory else 0)
        if status != Status.OK:
            raise error(status, "the tail was refused")

    def fail(self, text: str, code: int = Status.E_INTERNAL) -> None:
        """End it because the computation failed; the decode side is told."""
        with self._engine._gate, self._lock:
            status = self._engine._lib.wimm_kv_sender_fail(self._use(), code, text.encode())
        if status not in (Status.OK, Status.E_CLOSED):
            raise error(status)

    def close(self) -> None:
        """Give it up; one that has not ended does so as cancelled."""
        self._close_by(self._close_within)

    def _close_within(self, handle: int, own: int) -> None:
        _native.check(self._engine._lib.wimm_kv_sender_close(ctypes.byref(ctypes.c_void_p(own))))


class Watch(Child):
    """A word for several senders to follow."""

    def __init__(self, cache: Cache) -> None:
        out = ctypes.c_void_p()
        self._lock = threading.Lock()
        self._cache = cache
        with cache.engine._gate:
            _native.check(cache.engine._lib.wimm_kv_watch_open(cache._use(), ctypes.byref(out)))
            super().__init__(cache.engine, out.value or 0)

    def add(self, amount: int = 1) -> int:
        """Add to the word. Returns its new value."""
        _calls.unsigned("amount", amount)
        self._engine._gate.check_fork()
        with self._lock:
            value: int = self._engine._lib.wimm_kv_watch_add(self._use(), amount)
            return value

    @property
    def address(self) -> int:
        """Where the word lies, for kernels. It is added to, never set."""
        self._engine._gate.check_fork()
        with self._lock:
            word = self._engine._lib.wimm_kv_watch_word(self._use())
        return ctypes.cast(word, ctypes.c_void_p).value or 0

    def close(self) -> None:
        """Give it up. Senders that still follow it fail as cancelled."""
        self._close_by(self._close_within)

    def _take(self) -> int | None:
        with self._lock:
            return super()._take()

    def _close_within(self, handle: int, own: int) -> None:
        _native.check(self._engine._lib.wimm_kv_watch_close(ctypes.byref(ctypes.c_void_p(own))))


class _Entries:
    """The two C callbacks of this module, made at first use and never freed."""

    def __init__(self) -> None:
        self.done = _abi.wimm_kv_done_fn(_calls._enter)
        self.request = _abi.wimm_kv_request_fn(_calls._enter)


_made: _Entries | None = None
_making = threading.Lock()


def _entries() -> _Entries:
    global _made
    with _making:
        if _made is None:
            _made = _Entries()
    return _made


def _request_target(callback: Callable[[Request], object]) -> Callable[..., None]:
    def target(peer: int, data: int, length: int) -> None:
        callback(Request.parse(ctypes.string_at(data, length), peer))

    return _calls.guarded(target, callback)


def _call(function: Any, *args: Any) -> None:
    """Call with room for words behind the arguments; raise what it refuses."""
    info = _abi.wimm_error_info()
    status = function(*args, ctypes.byref(info))
    if status != Status.OK:
        raise error(status, info.text.decode(errors="replace"))


def _to_c(layout: Layout) -> _abi.wimm_kv_layout:
    u32 = _calls.U32_MAX
    c = _abi.wimm_kv_layout(
        size=ctypes.sizeof(_abi.wimm_kv_layout), kind=layout.kind,
        layers=_calls.unsigned("layers", layout.layers, u32),
        kv_heads=_calls.unsigned("kv_heads", layout.kv_heads, u32),
        head_dim=_calls.unsigned("head_dim", layout.head_dim, u32),
        elem_bytes=_calls.unsigned("elem_bytes", layout.elem_bytes, u32),
        elem_type=_calls.unsigned("elem_type", layout.elem_type, u32),
        page_tokens=_calls.unsigned("page_tokens", layout.page_tokens, u32),
        model_tag=_calls.unsigned("model_tag", layout.model_tag),
        tp=_calls.unsigned("tp", layout.tp, u32),
        tp_rank=_calls.unsigned("tp_rank", layout.tp_rank, u32),
        pages=_calls.unsigned("pages", layout.pages),
        offset_bytes=_calls.unsigned("offset", layout.offset))
    if layout.strides is None:
        info = _abi.wimm_error_info()
        status = _native.library().wimm_kv_layout_pack(ctypes.byref(c), ctypes.byref(info))
        # One whose ranks do not divide the heads still has a place in a comparison.
        if status not in (Status.OK, Status.E_MISMATCH):
            raise error(status, info.text.decode(errors="replace"))
    else:
        for name, stride in zip(Strides._fields, layout.strides):
            setattr(c, f"{name}_stride_bytes", _calls.unsigned(f"{name} stride", stride))
    return c


def _from_c(c: _abi.wimm_kv_layout) -> Layout:
    strides = Strides(*(getattr(c, f"{name}_stride_bytes") for name in Strides._fields))
    return Layout(c.layers, c.kv_heads, c.head_dim, c.elem_bytes, c.page_tokens, c.pages, c.tp,
                  c.tp_rank, KvKind(c.kind), c.elem_type, c.model_tag, c.offset_bytes, strides)
