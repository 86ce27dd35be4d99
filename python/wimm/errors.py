# SPDX-License-Identifier: Apache-2.0
"""What this package raises when the engine refuses a call or an operation fails."""

from __future__ import annotations

import concurrent.futures
import enum
from typing import Any, TypeVar

from ._abi import STATUS_SCOPES, STATUS_TEXTS, Scope, Status

Member = TypeVar("Member", bound=enum.IntEnum)


class Error(Exception):
    """A refused call or a failed operation.

    code   a Status (a plain int for a value that this package does not know)
    scope  how far it reaches: the call, the operation, the peer or the engine
    peer   the peer that it is about, or None
    text   one line for a person
    """

    def __init__(self, code: int, text: str = "", peer: int | None = None) -> None:
        self.code = as_status(code)
        self.peer = peer or None
        if isinstance(self.code, Status):
            name, self.scope = self.code.name, STATUS_SCOPES[self.code]
            self.text = text or STATUS_TEXTS[self.code]
        else:
            name, self.scope = f"status {self.code}", Scope.ENGINE
            self.text = text or "unknown status"
        super().__init__(f"{name}: {self.text}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (int(self.code), self.text, self.peer)


class Again(Error):
    """The queue is full. Nothing has changed: try again when something has been done."""


class Cancelled(Error, concurrent.futures.CancelledError):
    """The operation was cancelled before it was done."""


def as_member(kind: type[Member], value: int) -> Member | int:
    """The member of an enum, or the number where a newer library returned an unknown one."""
    try:
        return kind(value)
    except ValueError:
        return value


def as_status(code: int) -> Status | int:
    """The Status of a number."""
    return as_member(Status, code)


def error(code: int, text: str = "", peer: int | None = None) -> Error:
    """The exception for a status, of the class that fits."""
    if code == Status.AGAIN:
        return Again(code, text, peer)
    if code == Status.E_CANCELLED:
        return Cancelled(code, text, peer)
    return Error(code, text, peer)
