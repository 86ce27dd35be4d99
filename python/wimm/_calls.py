# SPDX-License-Identifier: Apache-2.0
"""Between Python and the engine's threads: the C entry points of callbacks, who they are for, and
the gate that keeps calls out of an engine that is being closed."""

from __future__ import annotations

import ctypes
import itertools
import operator
import os
import sys
import threading
from typing import Any, Callable, Protocol

from . import _abi
from ._abi import Status
from .errors import error

U32_MAX = 0xFFFF_FFFF
U64_MAX = 0xFFFF_FFFF_FFFF_FFFF
# An unending deadline in C is 0; this is the longest other one, 292 years.
_DEADLINE_MAX_US = 1 << 63


class Receives(Protocol):
    """Whom a context number stands for: called with what the C callback got."""

    def __call__(self, *args: Any) -> None: ...


# Context numbers instead of object pointers: a late or doubled callback finds nothing, not rubbish.
# Each access is one dict operation, which the GIL makes atomic.
_targets: dict[int, Receives] = {}
_numbers = itertools.count(1)
_callback_threads: set[int] = set()


def remember(target: Receives) -> int:
    """A context number for callbacks to `target`, which stays alive until forget()."""
    number = next(_numbers)
    _targets[number] = target
    return number


def forget(number: int) -> Receives | None:
    """Let a context number go. Returns what it stood for, if it still did."""
    return _targets.pop(number, None)


def remembered() -> list[tuple[int, Receives]]:
    """All context numbers in use, for sweeping up after an engine."""
    return list(_targets.items())


def in_callback() -> bool:
    """Whether this thread is inside a callback of an engine."""
    return threading.get_ident() in _callback_threads


class _Raise:
    """Raises an exception again, under the name of the callback that it came from."""

    def __init__(self, exc: BaseException | None, where: object) -> None:
        self._exc = exc
        self._where = where

    def __repr__(self) -> str:
        return repr(self._where)

    def __call__(self) -> None:
        if self._exc is not None:
            raise self._exc


def report(where: object) -> None:
    """Hand the exception that is being handled to sys.unraisablehook. Python code cannot make the
    arguments of that hook; ctypes does, for what a callback raises."""
    ctypes.CFUNCTYPE(None)(_Raise(sys.exc_info()[1], where))()


def guarded(function: Callable[..., Any], where: object = None) -> Callable[..., None]:
    """`function`, with its exceptions reported (as those of `where`, if given) instead of raised:
    nobody above it could catch them."""

    def call(*args: Any) -> None:
        try:
            function(*args)
        except BaseException:
            report(where or function)

    return call


def _enter(number: int | None, *args: Any) -> None:
    target = _targets.get(number or 0)
    if target is None:
        return
    thread = threading.get_ident()
    _callback_threads.add(thread)
    try:
        target(*args)
    except BaseException:
        report(target)
    finally:
        _callback_threads.discard(thread)


class EntryPoints:
    """The four C callbacks, made at first use and never freed: one for all objects of a kind."""

    def __init__(self) -> None:
        self.done = _abi.wimm_done_fn(_enter)
        self.peer_event = _abi.wimm_peer_event_fn(_enter)
        self.received = _abi.wimm_recv_fn(_enter)
        self.watched = _abi.wimm_watch_fn(_enter)


_entry_points: EntryPoints | None = None
_entry_lock = threading.Lock()


def entry_points() -> EntryPoints:
    global _entry_points
    with _entry_lock:
        if _entry_points is None:
            _entry_points = EntryPoints()
    return _entry_points


class Gate:
    """Holds an engine's handle. Calls go in and out; shut() lets no more in, waits for those inside
    and takes the handle away, so that no call can meet a closed engine."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle
        self._inside = 0
        self._changed = threading.Condition(threading.Lock())
        self._pid = os.getpid()

    def __enter__(self) -> int:
        self.check_fork()
        with self._changed:
            if self._handle is None:
                raise error(Status.E_CLOSED, "the engine is closed")
            self._inside += 1
            return self._handle

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._inside -= 1
            if self._inside == 0 and self._handle is None:
                self._changed.notify_all()

    def forked(self) -> bool:
        """Whether this process is a child of the one that opened the engine."""
        return os.getpid() != self._pid

    def check_fork(self) -> None:
        # Before any lock: in the child it may be held by a thread that is not there.
        if self.forked():
            raise error(Status.E_FORKED)

    def is_open(self) -> bool:
        return self._handle is not None

    def shut(self) -> int | None:
        """Returns the handle, or None where it was shut before."""
        with self._changed:
            handle, self._handle = self._handle, None
            while self._inside:
                self._changed.wait()
            return handle


def unsigned(name: str, value: Any, limit: int = U64_MAX) -> int:
    """`value` as a number that C takes as it is: ctypes would cut it off silently."""
    number = operator.index(value)
    if not 0 <= number <= limit:
        raise ValueError(f"{name} is {number}: allowed are 0 to {limit}")
    return number


def microseconds(name: str, seconds: float | None) -> int:
    """Seconds from now as C counts them; None is 0, "never"."""
    if seconds is None:
        return 0
    if not seconds > 0:
        raise ValueError(f"{name} is {seconds} s: it must lie in the future, or be None for never")
    return max(1, min(int(min(seconds, 1e12) * 1e6), _DEADLINE_MAX_US))
