# SPDX-License-Identifier: Apache-2.0
"""The decode side in a worker: pages that are to come.

A load is reported once: when its pages are readable, or when nothing can write to them any more.
The second takes two answers: the receiver is quiet (no write of a live session can reach its
pages, and the paths of ranks that were lost are closed), and every prefill rank that was asked has
said that it knows of no such request, or is gone. A lost rank whose paths cannot be closed while
its process lives keeps the pages in quarantine: it is asked about until they are.
"""

from __future__ import annotations

import functools
import json
import time
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger

import wimm

from .. import kv
from .plan import Load, whole_pages

if TYPE_CHECKING:
    from .worker import Worker

logger = init_logger(__name__)

#: Answers after which only peers that were lost may still write, if anybody.
_QUIET = (wimm.Status.E_QUARANTINED, wimm.Status.E_CLOSED)
_FENCED = (wimm.FenceAnswer.CONFIRMED, wimm.FenceAnswer.FENCED)


class _Loading:
    """A load that is not reported yet."""

    def __init__(self, load: Load, deadline: float) -> None:
        self.load = load
        self.deadline = deadline
        self.peers: list[int] = []
        self.receiver: kv.Receiver | None = None
        self.given_up: kv.Receiver | None = None  #: what it was, of one that has failed
        self.id = 0                    #: of the wimm request
        self.failed = ""               #: why; "" while it has not
        self.aborted = False
        self.quiet = True              #: no receiver is being given up
        self.unsure: set[int] = set()  #: peers that may still know of it
        self.silent: dict[int, bool] = {}  #: lost peers that may still write; whether one is asked

    def bad_blocks(self) -> list[int]:
        """Those of its blocks whose pages have not come. Known when nothing can write any more."""
        if not self.failed:
            return []
        if self.given_up is None:
            return self.load.blocks
        return [self.load.blocks[place] for place in self.given_up.missing()]


class Loads:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._open: dict[str, _Loading] = {}
        self._layouts: dict[int, kv.Layout] = {}  # of peers
        self._waiting: list[_Loading] = []        # for a layout, or for room
        self.over: set[str] = set()
        self._bad_blocks: set[int] = set()

    def busy(self) -> bool:
        return bool(self._open)

    def take_over(self) -> set[str]:
        over, self.over = self.over, set()
        return over

    def take_bad_blocks(self) -> set[int]:
        with self._worker.lock:
            bad, self._bad_blocks = self._bad_blocks, set()
            return bad

    # --- vLLM's thread ---

    def begin(self, load: Load) -> None:
        worker = self._worker
        with worker.lock:
            loading = _Loading(load, time.monotonic() + worker.settings.load_timeout)
            self._open[load.request] = loading
            try:
                loading.peers = [worker.peer(address) for address in load.addresses]
            except wimm.Error as problem:
                self._fail(loading, str(problem))
                return
            self._waiting.append(loading)
            if loading.peers[0] not in self._layouts:
                worker.say(loading.peers[0], "ask")
            self._serve_waiting()

    def cancel(self, requests: list[str]) -> None:
        with self._worker.lock:
            for request in requests:
                loading = self._open.get(request)
                if loading is not None:  # else it was reported before vLLM gave it up
                    loading.aborted = True
                    self._fail(loading, "given up by the decode side")

    # --- with the lock, on either thread ---

    def _serve_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for loading in waiting:
            layout = self._layouts.get(loading.peers[0])
            if layout is None or not self._ask(loading, layout):
                self._waiting.append(loading)

    def _ask(self, loading: _Loading, layout: kv.Layout) -> bool:
        """Open the receiver and send its request, or fail where that cannot be. False: there is no
        room now."""
        load, worker = loading.load, self._worker
        left = max(loading.deadline - time.monotonic(), 0.001)
        note = json.dumps({"transfer": load.transfer, "tokens": load.tokens}).encode()
        tokens = whole_pages(load.tokens, worker.layout.page_tokens)
        try:
            receiver = worker.cache.receive(
                tokens, load.blocks, first_token=load.first_token, prefill=layout, tail=False,
                peers=loading.peers, note=note, deadline=left)
        except wimm.Again:
            return False
        except wimm.Error as problem:
            self._fail(loading, str(problem))
            return True
        loading.receiver = receiver
        loading.id = kv.Request.parse(receiver.request).id
        for peer in loading.peers:
            loading.unsure.add(peer)
            try:
                worker.engine.send(peer, receiver.request, deadline=left)
            except wimm.Error as problem:
                self._fail(loading, str(problem))
                break
        receiver.ended.add_done_callback(lambda ended: self._ended(loading, ended))
        return True

    def _ended(self, loading: _Loading, ended: Any) -> None:
        """Callback thread, or whoever added the callback: the receiver has reported."""
        with self._worker.lock:
            problem = ended.exception(0) if not ended.cancelled() else None
            if ended.cancelled() or problem is not None:
                self._fail(loading, str(problem or "cancelled"))
            elif loading.receiver is not None:
                receiver, loading.receiver = loading.receiver, None
                receiver.close(wait=False)
                loading.unsure.clear()
                self._report(loading)
        self._worker.changed()

    def _fail(self, loading: _Loading, text: str) -> None:
        """Nothing is reported before nothing can write to its pages."""
        if loading.failed or loading.load.request not in self._open:
            return
        loading.failed = text or "failed"
        if not loading.aborted:
            logger.warning("wimm: pages of request %s do not come: %s", loading.load.request, text)
        if loading in self._waiting:
            self._waiting.remove(loading)
        receiver, loading.receiver = loading.receiver, None
        if receiver is not None:
            loading.given_up = receiver
            quiet = receiver.give_up()
            if quiet is not None:  # else the engine is being closed
                loading.quiet = False
                quiet.add_done_callback(lambda ended: self._is_quiet(loading, ended))
        self._say_cancel(loading)
        self._report_if_safe(loading)

    def _say_cancel(self, loading: _Loading) -> None:
        if not loading.id:  # nobody was asked, so nobody will ask: prefill need not keep the pages
            for peer in loading.peers:
                self._worker.say(peer, "cancel", id=0, transfer=loading.load.transfer)
        for peer in list(loading.unsure):
            self._worker.say(peer, "cancel", id=loading.id, transfer=loading.load.transfer)

    def _is_quiet(self, loading: _Loading, ended: Any) -> None:
        """Callback thread: no write of a live session can reach its pages; lost peers may."""
        with self._worker.lock:
            problem = _problem(ended)
            loading.quiet = problem is None or problem.code in _QUIET
            if problem is not None and problem.code == wimm.Status.E_QUARANTINED:
                loading.silent = {peer: False for peer in loading.peers
                                  if peer == problem.peer or self._worker.is_lost(peer)}
                logger.warning("wimm: the blocks of request %s stay out of use: %s",
                               loading.load.request, problem)
                self._ask_silent(loading)
            self._report_if_safe(loading)
        self._worker.changed()

    def _ask_silent(self, loading: _Loading) -> None:
        """Whether lost peers are gone by now, or their paths closed. What cannot be asked now, and
        whose answer is no, is asked again by poll()."""
        for peer, asked in list(loading.silent.items()):
            if asked:
                continue
            try:
                fence = self._worker.engine.fence_peer(peer, block=False)
            except wimm.Error as problem:
                logger.debug("wimm: peer %d cannot be fenced now: %s", peer, problem)
                continue
            loading.silent[peer] = True
            fence.add_done_callback(functools.partial(self._fenced, loading, peer))

    def _fenced(self, loading: _Loading, peer: int, ended: Any) -> None:
        """Callback thread: only a fence that holds gives blocks back."""
        with self._worker.lock:
            if ended.fence in _FENCED:
                loading.silent.pop(peer, None)
                self._report_if_safe(loading)
            elif peer in loading.silent:
                loading.silent[peer] = False
        self._worker.changed()

    def _report_if_safe(self, loading: _Loading) -> None:
        if loading.failed and loading.quiet and not loading.silent and not loading.unsure:
            self._report(loading)

    def _report(self, loading: _Loading) -> None:
        if self._open.pop(loading.load.request, None) is None:
            return
        self.over.add(loading.load.request)
        self._worker.stats.add(loads_come=not loading.failed,
                               loads_failed=bool(loading.failed and not loading.aborted))
        if not loading.aborted:
            self._bad_blocks.update(loading.bad_blocks())

    def _by_id(self, number: int) -> _Loading | None:
        return next((one for one in self._open.values() if one.id == number and number), None)

    # --- what peers say ---

    def told_layout(self, peer: int, layout: kv.Layout) -> None:
        self._layouts[peer] = layout
        self._serve_waiting()

    def gone(self, peer: int, number: int) -> None:
        loading = self._by_id(number)
        if loading is not None and loading.failed:
            loading.unsure.discard(peer)
            self._report_if_safe(loading)

    def refused(self, number: int, text: str) -> None:
        loading = self._by_id(number)
        if loading is not None:
            self._fail(loading, text)

    def peer_lost(self, peer: int) -> None:
        self._layouts.pop(peer, None)
        for loading in list(self._open.values()):
            if peer in loading.peers:
                loading.unsure.discard(peer)
                self._fail(loading, "a prefill rank was lost")
                self._report_if_safe(loading)

    def poll(self, now: float) -> None:
        """What a message that got lost would leave behind."""
        for loading in list(self._open.values()):
            if loading.failed:
                self._say_cancel(loading)
                self._ask_silent(loading)
            elif loading in self._waiting:
                if now >= loading.deadline:
                    self._fail(loading, "the prefill side has not answered in time")
                elif loading.peers[0] not in self._layouts:
                    self._worker.say(loading.peers[0], "ask")
        self._serve_waiting()


def _problem(ended: Any) -> wimm.Error | None:
    """What an operation that has settled failed with; None where it did not."""
    try:
        found = ended.exception(0)
    except wimm.Error as cancelled:
        return cancelled
    return found if isinstance(found, wimm.Error) else None
