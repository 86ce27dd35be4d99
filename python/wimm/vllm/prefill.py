# SPDX-License-Identifier: Apache-2.0
"""The prefill side in a worker: prompts that are computed here for others.

A job is a prompt, a sender one decode rank's request for it. Requests come before, while or after
the prompt is computed; whatever is final leaves at once, the rest layer by layer.
"""

from __future__ import annotations

import collections
import json
import time
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from vllm.logger import init_logger

import wimm

from .. import kv
from .plan import Save, Step, whole_pages

if TYPE_CHECKING:
    from .worker import Worker

logger = init_logger(__name__)

Key = TypeVar("Key")

_GIVEN_UP = "given up by the decode side"
_REMEMBERED = 4096        # transfers and requests that are over
_FAIL_WAIT_S = 30.0       # for writes under way to let go of their source


class _Sender:
    """One decode rank's request for a job."""

    def __init__(self, request: kv.Request, sender: kv.Sender, page_tokens: int) -> None:
        self.id = request.id
        self.peer = request.peer
        self.sender = sender
        self.told_pages = request.first_token // page_tokens  #: of the prompt's pages
        self.goal = 0      #: steps that were told
        self.bumped = 0
        self.began: float | None = None  #: when the first layer could leave
        self.cancel_peer: int | None = None  #: wants to know when this is over


class _Job:
    """A prompt that is computed, or was."""

    def __init__(self, save: Save) -> None:
        self.request = save.request
        self.transfer = save.transfer
        self.tokens = save.tokens
        self.blocks: list[int] = []
        self.final = 0            #: tokens before it are computed
        self.end = 0              #: the present step's end
        self.computed: float | None = None  #: when all of it was
        self.senders: list[_Sender] = []
        self.ended = 0            #: requests that are through, one way or another
        self.wanted: int | None = None  #: requests there will be: the decode side's ranks
        self.failed = ""
        self.held_since: float | None = None  #: vLLM has finished it and kept its blocks for us

    def over(self) -> bool:
        if self.senders:
            return False
        return bool(self.failed) or (self.wanted is not None and self.ended >= self.wanted)


class Saves:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._jobs: dict[str, _Job] = {}            # by transfer
        self._by_request: dict[str, _Job] = {}
        self._early: dict[str, list[kv.Request]] = {}  # by transfer, before there is a job
        self._active: list[_Job] = []               # in the present forward pass
        self._layers_done = 0                       # of it
        # What is over, by transfer and by a wimm request's id: whoever asks late is told.
        self._refused: collections.OrderedDict[str, str] = collections.OrderedDict()
        self._cancelled: collections.OrderedDict[int, str] = collections.OrderedDict()
        self.over: set[str] = set()

    def busy(self) -> bool:
        return any(job.held_since is not None for job in self._jobs.values())

    def take_over(self) -> set[str]:
        over, self.over = self.over, set()
        return over

    # --- vLLM's thread ---

    def begin(self, step: Step) -> None:
        """Before a forward pass: what it computes."""
        with self._worker.lock:
            self._layers_done = 0
            for transfer, text in step.refusals.items():
                self._refuse(transfer, text)
            for save in step.saves:
                job = self._by_request.get(save.request)
                if job is None:
                    job = self._new_job(save)
                if job.failed:
                    continue
                job.blocks += save.blocks
                job.end = save.end
                self._active.append(job)
                for sender in job.senders:
                    self._tell(job, sender)
                self._serve_early(job)

    def _new_job(self, save: Save) -> _Job:
        job = self._by_request[save.request] = _Job(save)
        if save.transfer in self._jobs:
            logger.warning("wimm: transfer id %s is in use: request %s is sent nowhere",
                           save.transfer, save.request)
            job.failed = "its transfer id is in use"
            return job
        self._jobs[save.transfer] = job
        if self._refused.pop(save.transfer, "") == _GIVEN_UP:
            self._fail(job, _GIVEN_UP)
        return job

    def layer_done(self, index: int) -> None:
        """A layer's K and V of the present pass are final."""
        if not self._active:
            return
        with self._worker.lock:
            self._layers_done = index + 1
            self._note_computed()
            for job in self._active:
                for sender in job.senders:
                    self._bump(job, sender)

    def end(self) -> None:
        """After a forward pass."""
        if not self._active:
            return
        with self._worker.lock:
            self._layers_done = self._worker.layout.layers
            self._note_computed()
            for job in self._active:
                for sender in job.senders:
                    self._bump(job, sender)
                job.final = job.end
            self._active.clear()

    def _note_computed(self) -> None:
        """Which prompts are through with the layer that has just been done."""
        if self._layers_done == self._worker.layout.layers:
            now = time.monotonic()
            for job in self._active:
                if job.end == job.tokens and job.computed is None:
                    job.computed = now

    def fail(self, failures: dict[str, str]) -> None:
        """These requests' blocks are about to be used for something else. Returns when nothing
        reads them any more."""
        ended = []
        with self._worker.lock:
            for request, text in failures.items():
                job = self._by_request.get(request)
                if job is not None:
                    ended += [one.sender.ended for one in job.senders]
                    self._fail(job, text)
        deadline = time.monotonic() + _FAIL_WAIT_S
        for operation in ended:
            try:
                operation.result(max(deadline - time.monotonic(), 0))
            except wimm.Error:
                pass  # as was asked for

    def held(self, requests: set[str]) -> None:
        """vLLM has finished these; those that are ours keep their blocks until reported."""
        for request in requests:
            job = self._by_request.get(request)
            if job is not None:
                job.held_since = time.monotonic()
                self._drop_if_over(job)

    # --- requests of the decode side; with the lock ---

    def asked(self, request: kv.Request) -> None:
        """Callback thread: a request has come."""
        with self._worker.lock:
            try:
                transfer = str(json.loads(request.note)["transfer"])
            except (KeyError, TypeError, ValueError):
                self._say_refused(request, "its note names no transfer")
                return
            if request.id in self._cancelled:
                return
            if transfer in self._refused:
                self._say_refused(request, self._refused[transfer])
                return
            self._early.setdefault(transfer, []).append(request)
            job = self._jobs.get(transfer)
            if job is not None:
                self._serve_early(job)

    def _serve_early(self, job: _Job) -> None:
        for request in self._early.pop(job.transfer, []):
            job.wanted = request.decode.tp
            if job.failed:
                self._say_refused(request, job.failed)
                job.ended += 1
            elif not self._open(job, request):
                self._early.setdefault(job.transfer, []).append(request)

    def _open(self, job: _Job, request: kv.Request) -> bool:
        """Serve a request. False: there is no room now."""
        worker = self._worker
        tokens = json.loads(request.note).get("tokens")
        if tokens != job.tokens:
            self._say_refused(request, f"the prompt has {job.tokens} tokens here, "
                                       f"{tokens} at the decode side")
            job.ended += 1
            return True
        try:
            sender = worker.cache.send(request, deadline=worker.settings.load_timeout)
        except wimm.Again:
            return False
        except wimm.Error as problem:  # which wimm has told the decode side
            logger.warning("wimm: request for %s is refused: %s", job.transfer, problem)
            job.ended += 1
            return True
        one = _Sender(request, sender, worker.layout.page_tokens)
        job.senders.append(one)
        if job in self._active or job.final:
            self._tell(job, one)
        sender.ended.add_done_callback(lambda ended: self._ended(job, one, ended))
        return True

    def _tell(self, job: _Job, one: _Sender) -> None:
        """The next chunk: all that is final after the present pass."""
        end = job.end if job in self._active else job.final
        page_tokens = self._worker.layout.page_tokens
        pages = -(-end // page_tokens)
        if end == job.tokens:
            end = whole_pages(end, page_tokens)
        try:
            one.sender.chunk(end, self._source(job, one.told_pages, pages))
        except wimm.Error as problem:
            if problem.code != wimm.Status.E_CLOSED:  # it has nothing to send from here
                one.sender.fail(str(problem))
            return
        one.told_pages = max(one.told_pages, pages)
        one.goal += self._worker.layout.layers
        self._bump(job, one)

    def _source(self, job: _Job, first: int, end: int) -> list[int]:
        """Where pages first..end of the prompt lie."""
        return job.blocks[first:max(first, end)]

    def _bump(self, job: _Job, one: _Sender) -> None:
        """Up to the layer that the present pass has reached, or all."""
        layers = self._worker.layout.layers
        missing = layers - self._layers_done if job in self._active else 0
        steps = one.goal - missing - one.bumped
        if steps > 0:
            one.began = one.began or time.monotonic()
            one.sender.bump(steps)
            one.bumped += steps

    # --- ends; with the lock ---

    def _ended(self, job: _Job, one: _Sender, ended: Any) -> None:
        """Callback thread, or whoever added the callback: a sender has reported."""
        with self._worker.lock:
            if one in job.senders:
                job.senders.remove(one)
                job.ended += 1
            one.sender.close()
            if one.cancel_peer is not None:
                self._worker.say(one.cancel_peer, "gone", id=one.id)
            self._drop_if_over(job)
            if one.began is not None and not ended.cancelled() and ended.exception(0) is None:
                self._count(job, one.began, ended.result(0).bytes)
        self._worker.changed()

    def _count(self, job: _Job, began: float, length: int) -> None:
        """A request was served."""
        now = time.monotonic()
        computed = now if job.computed is None else job.computed
        self._worker.stats.add(prompts_sent=1, bytes_sent=length, asked_early=began < computed,
                               sending_s=now - began, exposed_s=now - max(began, computed))

    def _fail(self, job: _Job, text: str) -> None:
        if job.failed:
            return
        job.failed = text
        if job in self._active:
            self._active.remove(job)
        self._refuse(job.transfer, text)
        for one in list(job.senders):
            one.sender.fail(text)
        self._drop_if_over(job)

    def _refuse(self, transfer: str, text: str) -> None:
        """Whoever asks for it, now or later, is told so."""
        _remember(self._refused, transfer, text)
        for request in self._early.pop(transfer, []):
            self._say_refused(request, text)

    def _say_refused(self, request: kv.Request, text: str) -> None:
        if request.peer is not None:
            self._worker.say(request.peer, "refuse", id=request.id, text=text)

    def _drop_if_over(self, job: _Job) -> None:
        if job.held_since is None or not job.over() or job in self._active:
            return
        if self._by_request.pop(job.request, None) is not None:
            if self._jobs.get(job.transfer) is job:
                del self._jobs[job.transfer]
                _remember(self._refused, job.transfer, job.failed or "its pages were sent before")
            self.over.add(job.request)

    def cancelled(self, peer: int, number: int, transfer: str) -> None:
        """The decode side has given a request up, and wants to know when nothing writes for it.
        Number 0: it has given the transfer up before it asked."""
        known = number in self._cancelled
        if number:
            _remember(self._cancelled, number, transfer)
        dropped = self._drop_early(transfer, lambda request: request.id == number)
        job = self._jobs.get(transfer)
        for one in job.senders if job is not None else []:
            if one.id == number:
                one.cancel_peer = peer
                one.sender.fail(_GIVEN_UP)
                return
        if not known and (dropped or not job or job.wanted is None):
            self._count_as_ended(job, transfer)
        self._worker.say(peer, "gone", id=number)

    def _drop_early(self, transfer: str, which: Callable[[kv.Request], bool]) -> list[kv.Request]:
        """Take those out that wait for a prompt."""
        early = self._early.pop(transfer, [])
        rest = [request for request in early if not which(request)]
        if rest:
            self._early[transfer] = rest
        return [request for request in early if which(request)]

    def _count_as_ended(self, job: _Job | None, transfer: str) -> None:
        """A request that will not be served: its job need not wait for it."""
        if job is None:
            self._refuse(transfer, _GIVEN_UP)
            return
        self._fail(job, _GIVEN_UP)

    def peer_lost(self, peer: int) -> None:
        """Its requests are void: their pages may be somebody else's soon."""
        for transfer in list(self._early):
            for request in self._drop_early(transfer, lambda request: request.peer == peer):
                _remember(self._cancelled, request.id, transfer)
                self._count_as_ended(self._jobs.get(transfer), transfer)
        for job in list(self._jobs.values()):
            for one in list(job.senders):
                if one.peer == peer:
                    one.sender.fail("the decode side was lost")

    def poll(self, now: float) -> None:
        for job in list(self._jobs.values()):
            if job.transfer in self._early:
                self._serve_early(job)
            if job.held_since is not None and now >= job.held_since + \
                    self._worker.settings.lease and not job.senders:
                logger.warning("wimm: nobody came for %s", job.transfer)
                self._fail(job, "its pages were kept for too long and given up")


def _remember(what: collections.OrderedDict[Key, str], key: Key, text: str) -> None:
    what[key] = text
    while len(what) > _REMEMBERED:
        what.popitem(last=False)
