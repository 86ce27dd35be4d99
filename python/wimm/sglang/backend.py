# SPDX-License-Identifier: Apache-2.0
"""SGLang's disaggregation backend over wimm: the four classes that a backend of SGLang 0.5 is.

Every buffer of SGLang's pool is a region of its own. Decode tells prefill which pages it has and
which immediate counts them; each chunk goes out as paged writes, the auxiliary buffers behind the
last one. One immediate is counted a page and buffer; where small pages lie in a row, decode asks
for one a group of them, whose neighbours wimm merges, and a group leaves when it is full. Decode is
done when all are counted: nobody says that it is. Ranks are paired one to one, so both sides have
the same number of them, or the cache is the same on each (MLA). State buffers, host destinations
and role switches are refused by name.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from typing import Any, List, Optional

from sglang.srt.disaggregation.base.conn import (
    BaseKVBootstrapServer,
    BaseKVManager,
    BaseKVReceiver,
    BaseKVSender,
    KVPoll,
    KVTransferDestination,
    KVTransferMetric,
)

from .. import Cancelled, Engine, Error, Operation, RemoteRegion

__all__ = ["KVBootstrapServer", "KVManager", "KVReceiver", "KVSender"]

_FIRST_IMM = 0x53470000
_IMMS = 0x8000  # values that requests take turns with
_DEADLINE_S = 300.0
_ANSWER_S = 10.0
_MESSAGE_MAX = 1 << 20
_GROUP_PAGES = 256        # that share an immediate: where, and how many, as wimm.kv has it
_GROUP_PAGE_MOST = 16384  # bytes of a page


class KVBootstrapServer(BaseKVBootstrapServer):
    """Where prefill ranks say how they are reached, and decode ranks ask."""

    def __init__(self, host: str, port: int) -> None:
        known: dict[str, Any] = {}
        lock = threading.Lock()

        class Handler(socketserver.StreamRequestHandler):
            timeout = _ANSWER_S

            def handle(self) -> None:
                try:
                    said = json.loads(self.rfile.readline(_MESSAGE_MAX))
                    with lock:
                        if "register" in said:
                            known[str(said["rank"])] = said["register"]
                        answer = {"ranks": len(known), "found": known.get(str(said["rank"]))}
                except (OSError, ValueError, KeyError, TypeError):
                    return
                self.wfile.write(json.dumps(answer).encode() + b"\n")

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server((host, port), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _ask_bootstrap(address: str, **said: Any) -> Any:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S) as connection:
        connection.sendall(json.dumps(said).encode() + b"\n")
        answer = connection.makefile("rb").readline(_MESSAGE_MAX)
    if not answer:
        raise OSError(f"the bootstrap server at {address} gave no answer")
    return json.loads(answer)


class KVManager(BaseKVManager):
    """The engine of one rank, its regions, and the requests that are open."""

    def __init__(self, args: Any, disaggregation_mode: Any, server_args: Any,
                 is_mla_backend: Optional[bool] = False, *, provider: str | None = None,
                 nics: str | None = None) -> None:
        if any(getattr(args, "state_data_ptrs", None) or []):
            raise NotImplementedError("wimm: state buffers are not moved (hybrid models)")
        self.args, self.is_mla = args, bool(is_mla_backend)
        self.mode = str(getattr(disaggregation_mode, "value", disaggregation_mode))
        first = getattr(server_args, "dist_init_addr", None)
        host = first.rpartition(":")[0] if first else getattr(server_args, "host", "127.0.0.1")
        self.bootstrap = f"{host}:{server_args.disaggregation_bootstrap_port}"
        self.lock = threading.Lock()
        self.engine = Engine(provider, nics)
        device = "cpu" if args.gpu_id < 0 else f"cuda:{args.gpu_id}"
        self.kv = [self.engine.register((ptr, length, device))
                   for ptr, length in zip(args.kv_data_ptrs, args.kv_data_lens)]
        self.aux = [self.engine.register((ptr, length, "cpu"))
                    for ptr, length in zip(args.aux_data_ptrs, args.aux_data_lens)]
        self.wanted: dict[int, dict[str, Any]] = {}   # prefill: room to what decode has said
        self.senders: dict[int, KVSender] = {}
        self.receivers: dict[int, KVReceiver] = {}
        self._remotes: dict[bytes, RemoteRegion] = {}
        self._imms = list(range(_FIRST_IMM, _FIRST_IMM + _IMMS))
        self.engine.recvs(self._heard, count=16, length=_MESSAGE_MAX)
        if self.mode == "prefill":
            self.register_to_bootstrap()

    def register_to_bootstrap(self) -> None:
        _ask_bootstrap(self.bootstrap, rank=self.args.engine_rank, register={
            "address": bytes(self.engine.address).hex(), "shape": self.shape()})

    def shape(self) -> dict[str, Any]:
        """What must agree on both sides."""
        return {"page_size": self.args.page_size, "buffers": len(self.kv),
                "page_bytes": list(self.args.kv_item_lens), "aux": list(self.args.aux_item_lens)}

    def take_imm(self) -> int:
        with self.lock:
            if not self._imms:
                raise RuntimeError(f"wimm: more than {_IMMS} requests are open")
            return self._imms.pop(0)

    def give_imm(self, imm: int) -> None:
        with self.lock:
            self._imms.append(imm)

    def remote(self, desc: str) -> RemoteRegion:
        data = bytes.fromhex(desc)
        with self.lock:
            if data not in self._remotes:
                self._remotes[data] = self.engine.open_remote(data)
            return self._remotes[data]

    def _heard(self, peer: int, data: bytes) -> None:
        said = json.loads(data)
        with self.lock:
            if "abort" in said:
                one: Any = (self.senders if said["to"] == "prefill"
                            else self.receivers).get(said["room"])
            else:
                self.wanted[said["room"]] = {**said, "peer": peer}
                return
        if one is not None:
            one._failed(str(said["abort"]))

    def close(self) -> None:
        self.engine.close()


def _error(operation: Operation) -> BaseException | None:
    """What an operation that has settled failed with."""
    try:
        return operation.exception()
    except Cancelled as cancelled:
        return cancelled


class _Request:
    """What a sender and a receiver have in common."""

    _mgr: KVManager

    def __init__(self, mgr: KVManager, room: int) -> None:
        self._mgr, self._room = mgr, room
        self._problem: str | None = None
        self._peer: int | None = None

    def _failed(self, problem: str) -> None:
        if self._problem is None:
            self._problem = problem

    def _tell(self, to: str, problem: str) -> None:
        if self._peer is None:
            return
        try:
            self._mgr.engine.send(self._peer, json.dumps(
                {"abort": problem, "to": to, "room": self._room}).encode(), block=False)
        except Error:
            pass  # a peer that cannot be told is lost, and knows

    def failure_exception(self) -> None:
        raise RuntimeError(f"wimm: room {self._room}: {self._problem or 'no failure'}")


class KVSender(_Request, BaseKVSender):
    """A request on the prefill side."""

    def __init__(self, mgr: KVManager, bootstrap_addr: str, bootstrap_room: int,
                 req_has_disagg_prefill_dp_rank: bool = False) -> None:
        super().__init__(mgr, bootstrap_room)
        self._pages = self._sent = 0
        self._held: list[int] = []  # pages of a group that is not full
        self._aux: int | None = None
        self._writes: list[Operation] = []
        self._began: float | None = None
        self._took: float | None = None
        self._bytes = 0
        with mgr.lock:
            mgr.senders[bootstrap_room] = self

    def init(self, num_kv_indices: int, aux_index: Optional[int] = None) -> None:
        self._pages, self._aux = num_kv_indices, aux_index

    def _said(self) -> dict[str, Any] | None:
        with self._mgr.lock:
            said = self._mgr.wanted.get(self._room)
        if said is not None and self._peer is None:
            self._peer = said["peer"]
            if said["shape"] != self._mgr.shape():
                self._give_up(f"decode has {said['shape']}, prefill {self._mgr.shape()}")
            elif not isinstance(said["group"], int) or said["group"] < 1:
                self._give_up(f"decode has groups of {said['group']!r} pages")
            elif self._pages and len(said["pages"]) != self._pages:
                self._give_up(f"{self._pages} pages, decode has {len(said['pages'])}")
        return said

    def _give_up(self, problem: str) -> None:
        self._failed(problem)
        self._tell("decode", problem)

    def send(self, kv_indices: Any, state_indices: Optional[List[Any]] = None,
             num_kv_tokens: Optional[int] = None) -> None:
        said = self._said()
        if said is None or self._problem is not None:
            self._failed("send() before decode has said where to")
            return
        if any(state_indices or []):
            self._give_up("state indices are not served")
            return
        mgr, wanted = self._mgr, len(said["pages"])
        self._held += map(int, kv_indices)
        self._began = self._began or time.monotonic()
        try:
            if self._sent + len(self._held) > wanted:
                raise ValueError(f"{self._sent + len(self._held)} pages, decode has {wanted}")
            self._send_groups(said, all_of_it=self._sent + len(self._held) == wanted)
            if self._sent == len(said["pages"]) and self._aux is not None:
                for region, desc, length in zip(mgr.aux, said["aux"], mgr.args.aux_item_lens):
                    self._writes.append(mgr.engine.write(
                        region, mgr.remote(desc), src_offset=self._aux * length,
                        dst_offset=said["aux_index"] * length, length=length, imm=said["imm"],
                        deadline=_DEADLINE_S))
        except (Error, ValueError) as problem:
            self._give_up(str(problem))

    def _send_groups(self, said: dict[str, Any], all_of_it: bool) -> None:
        """Write the pages that are held, but for the last group where it is not full."""
        mgr, group = self._mgr, int(said["group"])
        count = len(self._held)
        if not all_of_it:
            count -= count % group
        step = group if group > 1 else max(count, 1)  # in each request of writes
        for first in range(0, count, step):
            ours = self._held[first:min(first + step, count)]
            into = said["pages"][self._sent:self._sent + len(ours)]
            for region, desc, length in zip(mgr.kv, said["kv"], mgr.args.kv_item_lens):
                self._writes.append(mgr.engine.write_pages(
                    region, ours, mgr.remote(desc), into, page_bytes=length, imm=said["imm"],
                    imm_once=group > 1, deadline=_DEADLINE_S))
                self._bytes += len(ours) * length
            self._sent += len(ours)
        del self._held[:count]

    def poll(self) -> int:
        if self._problem is None and self._said() is None:
            return int(KVPoll.Bootstrapping)
        for write in self._writes:
            if self._problem is None and write.done() and _error(write) is not None:
                self._give_up(str(_error(write)))
        if self._problem is not None:
            # The pages are the pool's again only when nothing reads them.
            ended = all(write.done() for write in self._writes)
            return int(KVPoll.Failed if ended else KVPoll.Transferring)
        said = self._said()
        if said is None or self._sent < len(said["pages"]) or not self._writes:
            return int(KVPoll.Transferring if self._writes or self._held else
                       KVPoll.WaitingForInput)
        if not all(write.done() for write in self._writes):
            return int(KVPoll.Transferring)
        if self._took is None and self._began is not None:
            self._took = time.monotonic() - self._began
        return int(KVPoll.Success)

    def get_transfer_metric(self) -> Any:
        return KVTransferMetric(transfer_latency_s=self._took, transfer_total_bytes=self._bytes)

    def abort(self) -> None:
        self._give_up("aborted by the prefill side")
        for write in self._writes:
            write.cancel()

    def clear(self) -> None:
        with self._mgr.lock:
            self._mgr.senders.pop(self._room, None)
            self._mgr.wanted.pop(self._room, None)


class KVReceiver(_Request, BaseKVReceiver):
    """A request on the decode side."""

    def __init__(self, mgr: KVManager, bootstrap_addr: str,
                 bootstrap_room: Optional[int] = None) -> None:
        super().__init__(mgr, bootstrap_room or 0)
        self._bootstrap = bootstrap_addr
        self._imm: int | None = None
        self._counted: Operation | None = None
        self._retired: Operation | None = None
        with mgr.lock:
            mgr.receivers[self._room] = self

    def init(self, prefill_dp_rank: int) -> None:
        try:
            answer = _ask_bootstrap(self._bootstrap, rank=self._mgr.args.engine_rank)
            found = answer["found"]
            if found is None:
                raise OSError(f"prefill rank {self._mgr.args.engine_rank} is not among the "
                              f"{answer['ranks']} that have registered")
            if found["shape"] != self._mgr.shape():
                raise OSError(f"prefill has {found['shape']}, decode {self._mgr.shape()}")
            self._peer = self._mgr.engine.add_peer(bytes.fromhex(found["address"]))
        except (Error, OSError, ValueError) as problem:
            self._failed(str(problem))

    def send_metadata(self, kv_indices: Any, aux_index: Optional[int] = None,
                      state_indices: Optional[List[Any]] = None,
                      decode_prefix_len: Optional[int] = None,
                      destination: Any = KVTransferDestination.DEVICE) -> None:
        mgr, pages = self._mgr, list(map(int, kv_indices))
        if any(state_indices or []) or destination != KVTransferDestination.DEVICE:
            self._failed("state indices and host destinations are not served")
        if self._problem is not None or self._peer is None:
            return
        group = self._group(pages)
        count = -(-len(pages) // group) * len(mgr.kv) + (
            len(mgr.aux) if aux_index is not None else 0)
        try:
            self._imm = mgr.take_imm()
            self._counted = mgr.engine.expect(self._imm, count, owes={self._peer: count},
                                              deadline=_DEADLINE_S)
            mgr.engine.send(self._peer, json.dumps({
                "room": self._room, "imm": self._imm, "pages": pages, "group": group,
                "aux_index": aux_index,
                "shape": mgr.shape(), "kv": [region.desc.hex() for region in mgr.kv],
                "aux": [region.desc.hex() for region in mgr.aux]}).encode(), deadline=_ANSWER_S)
        except (Error, RuntimeError, ValueError) as problem:
            self._failed(str(problem))

    def _group(self, pages: list[int]) -> int:
        """Pages that share an immediate. A card that writes by itself takes any list in one launch,
        and few pages take no time: an immediate each there."""
        mgr = self._mgr
        by_card = mgr.args.gpu_id >= 0 and str(mgr.engine.address).startswith("host:")
        if len(pages) < _GROUP_PAGES or max(mgr.args.kv_item_lens) >= _GROUP_PAGE_MOST or by_card:
            return 1
        in_row = sum(after - before == 1 for before, after in zip(pages, pages[1:]))
        return _GROUP_PAGES if in_row >= len(pages) // 2 else 1

    def poll(self) -> int:
        if self._problem is None and self._counted is None:
            return int(KVPoll.Bootstrapping if self._peer is None else KVPoll.WaitingForInput)
        if self._counted is not None and self._counted.done():
            if _error(self._counted) is None:
                return int(KVPoll.Success)
            self._failed(str(_error(self._counted)))
        return int(KVPoll.Transferring if self._problem is None else KVPoll.Failed)

    def is_abort_release_safe(self) -> bool:
        """Whether no write can reach the pages any more. Ask after abort(), until it is so."""
        if self._imm is None:
            return True
        if self._retired is None:
            if self._counted is not None and not self._counted.done():
                self._counted.cancel()
            self._retired = self._mgr.engine.retire_imm(self._imm)
        return self._retired.done() and _error(self._retired) is None

    def abort(self) -> None:
        self._failed("aborted by the decode side")
        self._tell("prefill", "aborted by the decode side")
        self.is_abort_release_safe()

    def clear(self) -> None:
        """Let go of the request; its immediate comes back when nothing can deliver it any more."""
        with self._mgr.lock:
            self._mgr.receivers.pop(self._room, None)
        if self._imm is None:
            return
        self.is_abort_release_safe()
        imm, self._imm = self._imm, None
        if self._retired is not None:
            self._retired.add_done_callback(
                lambda ended: self._mgr.give_imm(imm) if _error(ended) is None else None)
