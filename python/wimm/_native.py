# SPDX-License-Identifier: Apache-2.0
"""Finding, loading and checking libwimm.so, at first use and not at import."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import Any, Callable

from . import _abi
from ._abi import Status
from .errors import error

_lock = threading.Lock()
_library: ctypes.CDLL | None = None
_chosen: Path | None = None


def use_library(path: str | os.PathLike[str]) -> None:
    """Load libwimm from this file instead of the one that came with the package.

    This is the only way to choose another library. It must be called before anything else of this
    package loads one; a second, different choice is refused with RuntimeError.
    """
    global _chosen
    wanted = Path(path).resolve()
    with _lock:
        if _library is not None and wanted != _chosen:
            raise RuntimeError(f"libwimm is loaded already, from {_chosen}")
        _chosen = wanted


def _find() -> Path:
    """The library beside this file (an installed package), or that of the source tree around it."""
    package = Path(__file__).resolve().parent
    root = package.parent.parent
    places = [package / "libwimm.so"]
    if (root / "meson.build").exists():
        places.append(root / "build" / "src" / "libwimm.so")
    for place in places:
        if place.exists():
            return place
    looked = ", ".join(map(str, places))
    raise OSError(f"libwimm.so is not there (looked at {looked}): install the package, build the "
                  f"tree with `meson setup build && ninja -C build`, or call wimm.use_library()")


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    if not hasattr(library, "wimm_version"):
        raise OSError(f"{path} has no wimm_version: it is not libwimm")
    wanted = _abi.WIMM_VERSION_MAJOR * 10000 + _abi.WIMM_VERSION_MINOR * 100
    version = library.wimm_version()
    if version // 100 != wanted // 100:
        raise OSError(f"{path} is version {version // 10000}.{version // 100 % 100}; this package "
                      f"needs {_abi.WIMM_VERSION_MAJOR}.{_abi.WIMM_VERSION_MINOR}")
    for name, (returns, takes) in _abi.FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            setattr(library, name, _missing(path, name))
        else:
            function.restype = returns
            function.argtypes = takes
    return library


def _missing(path: Path, name: str) -> Callable[..., Any]:
    """Stands for a function that an older build of the same version does not have."""

    def call(*_args: Any) -> Any:
        raise OSError(f"{path} has no {name}: build it anew")

    return call


def library() -> ctypes.CDLL:
    """The library, loaded once. ctypes releases the GIL for the time of each call into it."""
    global _library, _chosen
    if _library is None:
        with _lock:
            if _library is None:
                path = _chosen or _find()
                _library = _load(path)
                _chosen = path
    return _library


def check(status: int) -> None:
    """Raise for a refused call, in the words that the library has for it."""
    if status != Status.OK:
        raise refused(status)


def refused(status: int) -> Exception:
    """The exception for a call that the library has just refused on this thread."""
    text = library().wimm_last_error_text()
    return error(status, text.decode(errors="replace") if text else "")
