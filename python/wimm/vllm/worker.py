# SPDX-License-Identifier: Apache-2.0
"""The half of the connector that sits in each of vLLM's workers: an engine over the rank's cache,
its peers, and the short messages between them.

Two threads come in here: vLLM's own, which runs the forward pass and must not wait for a peer, and
the engine's callback thread. One lock guards everything; nobody waits for an operation under it.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from typing import TYPE_CHECKING, Any, Callable

from vllm.logger import init_logger

import wimm

from .. import kv
from .decode import Loads
from .plan import Settings, Step
from .prefill import Saves
from .shape import Shape
from .stats import Stats

if TYPE_CHECKING:
    from ..engine import PeerEvent

logger = init_logger(__name__)

_MAGIC = b"wimm.vllm 1 "
_IDLE_WAIT_S = 0.005   # an empty step waits so long for something to report
_POLL_S = 0.5          # how often what may have been lost is looked at
_MESSAGES = 32


class Worker:
    def __init__(self, settings: Settings, shape: Shape, rank: int, requests: int) -> None:
        self.settings = settings
        self.shape = shape
        self.layout = shape.layout
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._order = {name: index for index, name in enumerate(shape.layers)}
        self._peers: dict[str, int] = {}
        self._next_poll = 0.0
        self.stats = Stats()
        self.engine = wimm.Engine(settings.provider, settings.nics_of(rank),
                                  heartbeat=settings.heartbeat,
                                  peer_timeout=settings.peer_timeout,
                                  on_peer_event=self._on_peer_event)
        self.loads = Loads(self)
        self.saves = Saves(self)
        region = self.engine.register(shape.memory)
        self.cache = kv.Cache(self.engine, region, shape.layout, messages=0,
                              max_requests=min(65536, 8 * requests + 64),
                              on_request=self.saves.asked)
        length = min(1 << 20, 65536 + 4 * shape.layout.pages)
        self._pool = self.engine.recvs(self._on_message, count=_MESSAGES, length=length)
        logger.info("wimm: rank %d listens at %s, %d layers, %d pages of %d tokens", rank,
                    self.address, shape.layout.layers, shape.layout.pages,
                    shape.layout.page_tokens)

    @property
    def address(self) -> str:
        return str(self.engine.address)

    def close(self) -> None:
        self.engine.close()

    # --- vLLM's thread ---

    def begin(self, step: Step) -> None:
        """Before the forward pass."""
        self.saves.begin(step)

    def before_overwriting(self, step: Step) -> None:
        """Blocks of these requests are about to be used for something else."""
        self.saves.fail(step.failures)

    def load(self, step: Step) -> None:
        for load in step.loads:
            self.loads.begin(load)
        self.loads.cancel(step.cancels)

    def layer_done(self, name: str) -> None:
        self.saves.layer_done(self._order[name])

    def end(self) -> None:
        """After the forward pass."""
        self.saves.end()

    def finished(self, requests: set[str], idle: bool) -> tuple[set[str], set[str]]:
        """Requests whose pages have gone, and whose pages have come. An empty step waits a moment
        for them: the engine has nothing else to do then but to ask again."""
        with self._changed:
            self.saves.held(requests)
            self._poll()
            if idle and not self.saves.over and not self.loads.over and (
                    self.saves.busy() or self.loads.busy()):
                self._changed.wait(_IDLE_WAIT_S)
            return self.saves.take_over(), self.loads.take_over()

    def take_stats(self) -> Stats | None:
        """Those of what has ended since they were taken; None where nothing has."""
        with self.lock:
            if self.stats.is_empty():
                return None
            taken, self.stats = self.stats, Stats()
            return taken

    def _poll(self) -> None:
        now = time.monotonic()
        if now >= self._next_poll:
            self._next_poll = now + _POLL_S
            self.saves.poll(now)
            self.loads.poll(now)

    # --- for both halves ---

    def changed(self) -> None:
        """There may be something to report."""
        with self._changed:
            self._changed.notify_all()

    def peer(self, address: str) -> int:
        """A peer by its address; adding it starts connecting."""
        with self.lock:
            known = self._peers.get(address)
            if known is None:
                known = self._peers[address] = self.engine.add_peer(address)
            return known

    def is_lost(self, peer: int) -> bool:
        """Whether a peer's session has ended with an error."""
        try:
            return not self.engine.peer_info(peer).up and self.engine.peer_error(peer) is not None
        except wimm.Error:
            return True  # so long ago that nothing of it is left

    def say(self, peer: int, kind: str, **what: Any) -> bool:
        """Send a short message. False: it cannot go now."""
        try:
            self.engine.send(peer, _MAGIC + json.dumps({"kind": kind, **what}).encode(),
                             deadline=self.settings.peer_timeout)
        except wimm.Error as problem:
            logger.debug("wimm: %s to peer %d: %s", kind, peer, problem)
            return False
        return True

    # --- the callback thread ---

    def _on_message(self, peer: int, data: bytes) -> None:
        if not data.startswith(_MAGIC):
            self.cache.take_message(peer, data)
            return
        try:
            act = self._understood(peer, json.loads(data[len(_MAGIC):]))
        except (ArithmeticError, KeyError, TypeError, ValueError) as problem:
            logger.warning("wimm: peer %d said something that is no message: %s", peer, problem)
            return
        with self.lock:
            act()
        self.changed()

    def _understood(self, peer: int, said: dict[str, Any]) -> Callable[[], object]:
        """What is to be done about a short message. It is not done here: what is wrong with it then
        is no fault of the peer's."""
        kind = said["kind"]
        if kind == "ask":
            return lambda: self.say(peer, "layout", **_layout_says(self.layout))
        if kind == "layout":
            return functools.partial(self.loads.told_layout, peer, _layout_said(said))
        if kind == "cancel":
            return functools.partial(self.saves.cancelled, peer, int(said["id"]),
                                     str(said["transfer"]))
        if kind == "gone":
            return functools.partial(self.loads.gone, peer, int(said["id"]))
        if kind == "refuse":
            return functools.partial(self.loads.refused, int(said["id"]), str(said["text"]))
        raise ValueError(f"kind {kind!r}")

    def _on_peer_event(self, event: PeerEvent) -> None:
        if event.kind not in (wimm.PeerEventKind.DOWN, wimm.PeerEventKind.RESTARTED):
            return
        logger.warning("wimm: peer %d is lost: %s", event.peer, event.text)
        with self.lock:
            # The next request looks for whoever is at that address then.
            self._peers = {a: p for a, p in self._peers.items() if p != event.peer}
            self.saves.peer_lost(event.peer)
            self.loads.peer_lost(event.peer)
        self.changed()


def _layout_says(layout: kv.Layout) -> dict[str, Any]:
    said = dict(vars(layout))
    said["kind"], said["strides"] = int(layout.kind), list(layout.strides or ())
    return {"layout": said}


def _layout_said(said: dict[str, Any]) -> kv.Layout:
    fields = dict(said["layout"])
    fields["kind"] = kv.KvKind(fields["kind"])
    fields["strides"] = kv.Strides(*fields["strides"])
    return kv.Layout(**fields).packed()  # which looks at each number
