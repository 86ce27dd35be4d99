# SPDX-License-Identifier: Apache-2.0
"""The ten calls that SGLang's Mooncake wrapper makes of `mooncake.engine.TransferEngine`.

    import wimm.compat.mooncake
    wimm.compat.mooncake.install()   # from mooncake.engine import TransferEngine is this one

Addresses of a peer are plain numbers here, as they are there; a small TCP server of each engine
tells others which of its regions hold them. A write returns when its bytes are readable over there.
"""

from __future__ import annotations

import json
import logging
import socket
import socketserver
import sys
import threading
import types
from dataclasses import dataclass, field
from typing import Any, Sequence

from .._abi import Status
from ..engine import Engine
from ..errors import Error, error
from ..region import Region, RemoteRegion

__all__ = ["TransferEngine", "install"]

log = logging.getLogger(__name__)

_IMM = 0x4D4F4F4E  # of every write: nobody waits for it here, the writer does over there
_ANSWER_S = 10.0
_WRITE_S = 60.0
_TABLE_MAX = 64 << 20
_PROVIDERS = {"tcp": "tcp", "rdma": "verbs", "host": "host", "": None}


@dataclass
class _Peer:
    """What is known of a session: its regions by (address, length, descriptor)."""

    regions: list[tuple[int, int, bytes]] = field(default_factory=list)
    open: dict[bytes, RemoteRegion] = field(default_factory=dict)

    def find(self, address: int, length: int) -> tuple[int, bytes] | None:
        for start, size, desc in self.regions:
            if start <= address and address + length <= start + size:
                return start, desc
        return None


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    engine: TransferEngine


class _Handler(socketserver.StreamRequestHandler):
    timeout = _ANSWER_S
    server: _Server

    def handle(self) -> None:
        try:
            line = self.rfile.readline(64)
        except OSError:
            return
        if line == b"regions\n":
            self.wfile.write(self.server.engine._table())
        elif line == b"probe\n":
            self.wfile.write(b"{}\n")


class TransferEngine:
    """One engine. Each call returns 0, or a negative number and says why in the log."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._server: _Server | None = None
        self._lock = threading.Lock()
        self._regions: dict[int, Region] = {}
        self._peers: dict[str, _Peer] = {}

    # --- the ten calls ---

    def initialize(self, hostname: str, metadata_server: str, protocol: str,
                   device_name: str) -> int:
        """protocol: "tcp" or "rdma". device_name: NICs with commas between, "" for wimm's choice.
        Sessions are made peer to peer, so the metadata server is "P2PHANDSHAKE"."""
        if metadata_server != "P2PHANDSHAKE":
            return _failed("initialize", ValueError(
                f"metadata server {metadata_server!r}: only \"P2PHANDSHAKE\" is served"))
        if protocol not in _PROVIDERS:
            return _failed("initialize", ValueError(
                f"protocol {protocol!r}: there are {', '.join(filter(None, _PROVIDERS))}"))
        nics = device_name or None
        if protocol == "tcp" and nics is None:
            nics = f"{hostname}:0" if ":" not in hostname else f"[{hostname}]:0"
        try:
            self._engine = Engine(_PROVIDERS[protocol], nics)
            self._server = _Server((hostname, 0), _Handler)
        except (Error, OSError) as problem:
            if self._engine is not None:
                self._engine.close()
            self._engine = None
            return _failed("initialize", problem)
        self._server.engine = self
        threading.Thread(target=self._server.serve_forever, daemon=True,
                         name="wimm-mooncake").start()
        return 0

    def get_rpc_port(self) -> int:
        """Where others ask for this engine's regions; 0 before initialize()."""
        return int(self._server.server_address[1]) if self._server is not None else 0

    def register_memory(self, address: int, length: int) -> int:
        return self.batch_register_memory([address], [length])

    def unregister_memory(self, address: int) -> int:
        return self.batch_unregister_memory([address])

    def batch_register_memory(self, addresses: Sequence[int], lengths: Sequence[int]) -> int:
        """All or none."""
        made: dict[int, Region] = {}
        try:
            if len(addresses) != len(lengths):
                raise ValueError(f"{len(addresses)} addresses and {len(lengths)} lengths")
            engine = self._needed()
            for address, length in zip(addresses, lengths):
                with self._lock:
                    taken = address in self._regions or address in made
                if taken:
                    raise ValueError(f"memory at {address:#x} is registered already")
                made[address] = engine.register((address, length, self._device(address)))
        except (Error, ValueError, TypeError) as problem:
            for region in made.values():
                region.close(wait=False)
            return _failed("register_memory", problem)
        with self._lock:
            self._regions.update(made)
        return 0

    def batch_unregister_memory(self, addresses: Sequence[int]) -> int:
        """Returns when no peer can write there any more."""
        status = 0
        for address in addresses:
            with self._lock:
                region = self._regions.pop(address, None)
            if region is None:
                status = _failed("unregister_memory",
                                 ValueError(f"no memory at {address:#x} is registered"))
                continue
            try:
                region.close()
            except Error as problem:
                status = _failed("unregister_memory", problem)
        return status

    def transfer_sync_write(self, session: str, address: int, peer_address: int,
                            length: int) -> int:
        return self.batch_transfer_sync_write(session, [address], [peer_address], [length])

    def batch_transfer_sync_write(self, session: str, addresses: Sequence[int],
                                  peer_addresses: Sequence[int], lengths: Sequence[int]) -> int:
        """Returns 0 when all bytes are readable there."""
        try:
            if not len(addresses) == len(peer_addresses) == len(lengths):
                raise ValueError(f"{len(addresses)} sources, {len(peer_addresses)} destinations "
                                 f"and {len(lengths)} lengths")
            by_source: dict[int, list[tuple[RemoteRegion, int, int, int]]] = {}
            for address, peer_address, length in zip(addresses, peer_addresses, lengths):
                start = self._source(address, length)
                remote, offset = self._destination(session, peer_address, length)
                by_source.setdefault(start, []).append((remote, address - start, offset, length))
            self._write(by_source)
        except (Error, OSError, ValueError, TypeError, TimeoutError) as problem:
            with self._lock:  # its regions may be others by now
                self._peers.pop(session, None)
            return _failed(f"transfer to {session}", problem)
        return 0

    def send_probe(self, session: str) -> int:
        """0: the engine of that session answers."""
        try:
            _ask(session, b"probe\n")
        except (OSError, ValueError) as problem:
            return _failed(f"probe of {session}", problem)
        return 0

    def get_engine(self) -> Engine | None:
        """The engine beneath."""
        return self._engine

    # --- beneath them ---

    def close(self) -> None:
        """End the server and the engine."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self._engine is not None:
            self._engine.close()
        self._server = self._engine = None

    def _needed(self) -> Engine:
        if self._engine is None:
            raise error(Status.E_CLOSED, "initialize() has not been called, or has failed")
        return self._engine

    def _device(self, address: int) -> str:
        """An address alone does not say whose memory it is; the driver does, where it is loaded."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            return "cpu"
        attributes: Any = torch.cuda.cudart().cudaPointerGetAttributes(address)
        return f"cuda:{attributes.device}" if int(attributes.type) == 2 else "cpu"

    def _table(self) -> bytes:
        with self._lock:
            regions = [[address, region.length, region.desc.hex()]
                       for address, region in self._regions.items()]
        return json.dumps({"regions": regions}).encode() + b"\n"

    def _source(self, address: int, length: int) -> int:
        with self._lock:
            for start, region in self._regions.items():
                if start <= address and address + length <= start + region.length:
                    return start
        raise ValueError(f"{length} bytes at {address:#x} are in no memory registered here")

    def _destination(self, session: str, address: int, length: int) -> tuple[RemoteRegion, int]:
        with self._lock:
            peer = self._peers.get(session)
        found = peer.find(address, length) if peer is not None else None
        if peer is None or found is None:
            peer = self._ask_regions(session)
            found = peer.find(address, length)
        if found is None:
            raise ValueError(f"{length} bytes at {address:#x} are in no memory registered there")
        start, desc = found
        with self._lock:
            remote = peer.open.get(desc)
            if remote is None:
                remote = peer.open[desc] = self._needed().open_remote(desc)
        return remote, address - start

    def _ask_regions(self, session: str) -> _Peer:
        answer = json.loads(_ask(session, b"regions\n"))
        regions = [(int(address), int(length), bytes.fromhex(desc))
                   for address, length, desc in answer["regions"]]
        with self._lock:
            peer = self._peers.setdefault(session, _Peer())
            peer.regions = regions
        return peer

    def _write(self, by_source: dict[int, list[tuple[RemoteRegion, int, int, int]]]) -> None:
        engine = self._needed()
        operations = []
        for start, entries in by_source.items():
            with self._lock:
                region = self._regions[start]
            operations.append(engine.scatter(region, entries, imm=_IMM, confirmed=True,
                                             deadline=_WRITE_S))
        for operation in operations:
            operation.result(2 * _WRITE_S)


def _ask(session: str, question: bytes) -> bytes:
    host, colon, port = session.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"session {session!r} is no HOST:PORT")
    with socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S) as connection:
        connection.sendall(question)
        answer = connection.makefile("rb").readline(_TABLE_MAX)
    if not answer.endswith(b"\n"):
        raise ValueError(f"session {session!r} gave no answer")
    return answer


def _failed(what: str, problem: Exception) -> int:
    log.error("%s: %s", what, problem)
    return -1


def install() -> None:
    """Be `mooncake.engine` in this process, where nothing else is yet."""
    for name in ("mooncake", "mooncake.engine"):
        if name in sys.modules:
            raise ImportError(f"{name} is loaded already: call install() before")
    package, module = types.ModuleType("mooncake"), types.ModuleType("mooncake.engine")
    package.__path__ = []
    module.TransferEngine = TransferEngine  # type: ignore[attr-defined]
    package.engine = module  # type: ignore[attr-defined]
    sys.modules.update({"mooncake": package, "mooncake.engine": module})
