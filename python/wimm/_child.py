# SPDX-License-Identifier: Apache-2.0
"""What regions, groups, barriers, watchers and receivers have in common: a handle inside an engine,
closed once, by themselves or by the engine before it closes."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Callable, TypeVar

from . import _calls
from ._abi import Status
from .errors import Error, error

if TYPE_CHECKING:
    from .engine import Engine
    from .operation import Operation

Self = TypeVar("Self", bound="Child")
Result = TypeVar("Result")


class Child:
    """An object of an engine."""

    def __init__(self, engine: Engine, handle: int) -> None:
        self._engine = engine
        self._handle: int | None = handle
        engine._children[self] = None  # which keeps the order of opening

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            self.close()
        except Error as problem:
            # A fork's child leaves the block too, and has nothing to close there.
            if problem.code != Status.E_FORKED:
                raise

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def closed(self) -> bool:
        return self._handle is None

    def close(self) -> None:
        raise NotImplementedError

    def _use(self) -> int:
        """The handle, for a call inside the engine's gate."""
        handle = self._handle
        if handle is None:
            raise error(Status.E_INVAL, f"this {type(self).__name__} is closed")
        return handle

    def _take(self) -> int | None:
        """The handle, for the one who closes: nobody else has it afterwards."""
        handle = self._handle
        if handle is not None:
            try:
                del self._engine._children[self]  # one dict operation: one thread of two wins
            except KeyError:
                return None
            self._handle = None
        return handle

    def _close_by(self, close: Callable[[int, int], Result]) -> Result | None:
        """Close with close(engine handle, own handle), unless that is done or the engine does."""
        if self._handle is None:
            return None
        try:
            with self._engine._gate as engine_handle:
                own = self._take()
                return close(engine_handle, own) if own is not None else None
        except Error as problem:
            if problem.code == Status.E_CLOSED:
                return None
            raise

    def _close_within(self, handle: int, own: int) -> None:
        """Close without waiting: the engine is about to close, or does."""
        raise NotImplementedError

    @staticmethod
    def _wait_unless_in_callback(ended: Operation, wait: bool) -> None:
        if wait and not _calls.in_callback():
            try:
                ended.result()
            except Error as problem:
                # The engine closed meanwhile, and everything in it, or somebody asked for this end.
                if problem.code not in (Status.E_CLOSED, Status.E_CANCELLED):
                    raise
