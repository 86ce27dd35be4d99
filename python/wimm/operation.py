# SPDX-License-Identifier: Apache-2.0
"""What a submission returns: a future that settles exactly once."""

from __future__ import annotations

import concurrent.futures
import time
from typing import TYPE_CHECKING, Any, Callable, Generator, NamedTuple

from . import _calls
from ._abi import FenceAnswer, Status
from .errors import Cancelled, Error, as_member, error

if TYPE_CHECKING:
    from .engine import Engine


class Done(NamedTuple):
    """How an operation ended well."""

    imm: int            #: the immediate it carried, or that was waited for
    peer: int           #: the peer, 0 where there is not one
    bytes: int          #: payload bytes that peers have accepted
    descriptors: int    #: work requests that it took
    post_ns: int        #: from submission to the first post
    transfer_ns: int    #: from the first post to the end


class Operation(concurrent.futures.Future):  # type: ignore[type-arg]
    """A write, an expectation, a message... under way.

    It is a concurrent.futures.Future (wait, as_completed and asyncio.wrap_future take it) and can
    be awaited. Its result is a Done. What it reads stays alive until it has settled. Callbacks
    added before that run on the engine's callback thread and may not wait; what they raise goes to
    sys.unraisablehook.
    """

    def __init__(self, engine: Engine, kind: str, keep: tuple[object, ...]) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.engine = engine
        self.kind = kind
        self.id = 0
        #: what fence_peer() has found out; NONE until it has settled, and of other operations
        self.fence: FenceAnswer | int = FenceAnswer.NONE
        self._keep = keep
        self._number = _calls.remember(self._on_done)

    def __repr__(self) -> str:
        state = "open" if not self.done() else "cancelled" if self.cancelled() else "settled"
        return f"<wimm.Operation {self.kind} {self.id} {state}>"

    def cancel(self) -> bool:
        """Ask for an early end. True: asked, it settles as Cancelled or as it ended meanwhile.
        False: too late, it has settled. Its memory is in use until it has settled either way."""
        if self.done() or not self.id:
            return self.cancelled()
        return self.engine._cancel(self.id)

    def cancelled(self) -> bool:
        return self.done() and isinstance(super().exception(0), Cancelled)

    def result(self, timeout: float | None = None) -> Done:
        """Wait for the end. Raises Error as it failed, TimeoutError when `timeout` seconds have
        gone by first (the operation goes on then: its own limit is its deadline)."""
        self._wait(timeout)
        done: Done = super().result(timeout)
        return done

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end and return what it failed with, or None."""
        self._wait(timeout)
        found = super().exception(timeout)
        if isinstance(found, Cancelled):
            raise found
        return found

    def add_done_callback(self, fn: Callable[[Operation], object]) -> None:
        """Call fn(operation) when it has settled, at once if it has."""
        super().add_done_callback(_calls.guarded(fn))

    def __await__(self) -> Generator[Any, None, Done]:
        import asyncio  # here: it is larger than all of this package

        self._check()
        return asyncio.wrap_future(self).__await__()

    def _check(self) -> None:
        """Refuse to wait for what cannot come: in a fork's child, on the thread that brings it."""
        if not self.done():
            self.engine._gate.check_fork()
            if _calls.in_callback():
                raise error(Status.E_IN_CALLBACK, f"a callback cannot wait for a {self.kind}")

    def _wait(self, timeout: float | None) -> None:
        self._check()
        if not self.engine.caller_driven:
            return
        end = None if timeout is None else time.monotonic() + timeout
        while not self.done():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return
            self.engine._turn(left)

    def _drop(self) -> None:
        """The submission was refused: nothing will be reported."""
        _calls.forget(self._number)
        self._keep = ()

    def _on_done(self, pointer: Any) -> None:
        done = pointer.contents
        self.fence = as_member(FenceAnswer, done.fence)
        self._settle(done.status, Done(done.imm, done.peer, done.bytes, done.descriptors,
                                       done.post_ns, done.transfer_ns),
                     (done.text or b"").decode(errors="replace"))

    def _settle(self, status: int, done: Done, text: str = "") -> None:
        _calls.forget(self._number)
        self._keep = ()
        if status == Status.OK:
            self.set_result(done)
        else:
            self.set_exception(error(status, text, done.peer))

    def _abandon(self) -> None:
        """The engine is closed and has not said how this ended, which it has promised to do."""
        if not self.done():
            self._settle(Status.E_INTERNAL, Done(0, 0, 0, 0, 0, 0),
                         f"the engine closed without settling this {self.kind}")


__all__ = ["Done", "Error", "Operation"]
