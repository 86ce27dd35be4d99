# SPDX-License-Identifier: Apache-2.0
"""Operations as futures, callbacks, threads and the GIL."""
import asyncio
import concurrent.futures
import gc
import pickle
import sys
import threading
import time
import weakref

import numpy as np
import pytest
import wimm
from conftest import open_engine
from wimm import _calls

WAIT = 20


@pytest.fixture
def provider():
    return "sim"


def watch_unraisable(monkeypatch):
    """What sys.unraisablehook gets, and an event for its coming. Not a fixture: pytest sets a hook
    of its own after the fixtures have run."""
    came = []
    event = threading.Event()

    def hook(args):
        came.append((args.exc_type, str(args.exc_value), f"{args.err_msg}: {args.object!r}"))
        event.set()

    monkeypatch.setattr(sys, "unraisablehook", hook)
    return came, event


def test_operation_works_with_the_tools_for_futures(pair):
    """Goal: wait and as_completed of concurrent.futures take operations as they are."""
    operations = [pair.a.write(pair.src_region, pair.remote, imm=1, deadline=WAIT)
                  for _ in range(5)]
    assert isinstance(operations[0], concurrent.futures.Future)
    assert set(concurrent.futures.as_completed(operations, WAIT)) == set(operations)
    done, rest = concurrent.futures.wait(operations, WAIT)
    assert len(done) == 5 and not rest
    assert all(op.done() and not op.cancelled() and op.exception() is None for op in operations)
    assert len({op.id for op in operations}) == 5


def test_operation_wait_has_a_limit_of_its_own(pair):
    """Goal: result(timeout) gives up waiting, not the operation."""
    expected = pair.b.expect(1, 1)
    with pytest.raises(concurrent.futures.TimeoutError):
        expected.result(0.001)
    with pytest.raises(concurrent.futures.TimeoutError):
        expected.exception(0.001)
    assert not expected.done() and "open" in repr(expected)
    pair.a.write(pair.src_region, pair.remote, imm=1, deadline=WAIT)
    assert expected.result(WAIT).imm == 1 and "settled" in repr(expected)


def test_operation_cancelled_says_so_in_both_languages(pair):
    """Goal: a cancelled operation is Cancelled of this package and CancelledError of futures."""
    expected = pair.b.expect(1, 1)
    assert expected.cancel()
    with pytest.raises(wimm.Cancelled) as caught:
        expected.result(WAIT)
    assert caught.value.code == wimm.Status.E_CANCELLED
    assert isinstance(caught.value, concurrent.futures.CancelledError)
    assert expected.cancelled() and expected.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        expected.exception()


def test_operation_cancelled_too_late_has_its_result(pair):
    """Goal: cancel() after the end changes nothing."""
    operation = pair.a.write(pair.src_region, pair.remote, imm=99, confirmed=True, deadline=WAIT)
    done = operation.result(WAIT)
    assert not operation.cancel() and not operation.cancelled()
    assert operation.result() == done


def test_operation_can_be_awaited(pair):
    """Goal: await gives the result, gather runs many, a failure is raised."""

    async def talk():
        expected = pair.b.expect(1, 3, deadline=WAIT)
        done = await asyncio.gather(*(pair.a.write(pair.src_region, pair.remote, imm=1,
                                                   deadline=WAIT) for _ in range(3)))
        assert (await expected).imm == 1
        assert all(one.bytes == pair.src.nbytes for one in done)
        with pytest.raises(wimm.Error) as caught:
            await pair.b.expect(2, 1, deadline=0.01)
        assert caught.value.code == wimm.Status.E_TIMEOUT

    asyncio.run(asyncio.wait_for(talk(), WAIT))


def test_operation_is_cancelled_with_the_task_that_awaits_it(pair):
    """Goal: leaving an await cancels the operation, as asyncio's own futures do."""

    async def give_up():
        expected = pair.b.expect(1, 1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(expected, 0.01)
        return expected

    expected = asyncio.run(asyncio.wait_for(give_up(), WAIT))
    with pytest.raises(wimm.Cancelled):
        expected.result(WAIT)


def test_operation_keeps_its_source_until_it_has_settled(pair):
    """Goal: closing the region and dropping the array while a write is under way frees nothing
    that is still read."""
    values = np.ones(1 << 16, np.uint8)
    alive = weakref.ref(values)
    expected = pair.b.expect(1, 1, deadline=WAIT)
    region = pair.a.register(values)
    operation = pair.a.write(region, pair.remote, imm=1, deadline=WAIT)
    region.close(wait=False)
    del region, values
    expected.result(WAIT)
    operation.result(WAIT)
    assert (pair.dst == 1).all()
    del operation
    with open_engine("sim"):  # its opening and closing take longer than the deregistration
        pass
    pair.a.close()
    gc.collect()
    assert alive() is None


def test_callback_sees_the_operation_on_the_engine_s_thread(pair):
    """Goal: add_done_callback works before and after the end, once each."""
    expected = pair.b.expect(1, 1, deadline=WAIT)
    seen, came = [], threading.Event()
    expected.add_done_callback(lambda op: (seen.append((op, threading.get_ident())), came.set()))
    pair.a.write(pair.src_region, pair.remote, imm=1, deadline=WAIT)
    assert came.wait(WAIT)
    expected.add_done_callback(lambda op: seen.append((op, threading.get_ident())))
    assert [op for op, _ in seen] == [expected] * 2
    assert seen[0][1] != seen[1][1] == threading.get_ident()


def test_callback_may_submit_and_may_not_wait(pair):
    """Goal: work can go on from a callback, and what would block there for ever is refused."""
    refused, came = {}, threading.Event()

    def attempt(name, function):
        try:
            function()
        except wimm.Error as problem:
            refused[name] = problem.code

    def go_on(_operation):
        following = pair.b.expect(2, 1, deadline=WAIT)
        attempt("wait", following.result)
        attempt("close", pair.b.close)
        attempt("block", lambda: pair.b.expect(3, 1, block=True))
        following.add_done_callback(lambda _: came.set())

    pair.b.expect(1, 1, deadline=WAIT).add_done_callback(go_on)
    for imm in (1, 2):
        pair.a.write(pair.src_region, pair.remote, imm=imm, deadline=WAIT).result(WAIT)
    assert came.wait(WAIT)
    assert refused == dict.fromkeys(("wait", "close", "block"), wimm.Status.E_IN_CALLBACK)


def test_callback_may_close_regions_and_watchers(pair):
    """Goal: closing what belongs to the engine from a callback neither blocks nor leaks."""
    spare, ended = pair.b.register(bytearray(10)), threading.Event()
    watcher = pair.b.watcher(lambda old, new: (watcher.close(), spare.close(), ended.set()))
    watcher.add()
    assert ended.wait(WAIT)
    assert watcher.closed and spare.closed
    with pytest.raises(wimm.Error, match="closed"):
        watcher.add()


@pytest.mark.parametrize("kind", ["operation", "settled operation", "watcher", "message", "peer"])
def test_callback_that_raises_is_reported_and_harms_nothing(pair, monkeypatch, kind):
    """Goal: no exception is lost in silence, and the engine goes on."""
    came, event = watch_unraisable(monkeypatch)

    def broken(*_args):
        raise RuntimeError(f"broken {kind}")

    receiver = None
    if kind == "operation":
        pair.b.expect(1, 1, deadline=WAIT).add_done_callback(broken)
        pair.a.write(pair.src_region, pair.remote, imm=1, deadline=WAIT)
    elif kind == "settled operation":
        operation = pair.a.write(pair.src_region, pair.remote, deadline=WAIT)
        operation.result(WAIT)
        operation.add_done_callback(broken)
    elif kind == "watcher":
        pair.b.watcher(broken).add()
    elif kind == "message":
        receiver = pair.b.recvs(broken, count=1)
        peer = pair.a.add_peer(pair.b.address)
        pair.a.send(peer, b"first", deadline=WAIT).result(WAIT)
        pair.a.send(peer, b"the buffer came back", deadline=WAIT).result(WAIT)
    else:
        with open_engine("sim", on_peer_event=broken) as engine:
            engine.add_peer(pair.b.address)
            assert event.wait(WAIT)
    assert event.wait(WAIT)
    assert came[0][:2] == (RuntimeError, f"broken {kind}") and repr(broken) in came[0][2]
    if receiver is not None:
        receiver.close()
    pair.a.write(pair.src_region, pair.remote, imm=99, confirmed=True, deadline=WAIT).result(WAIT)


def test_waiting_lets_other_threads_run(pair):
    """Goal: neither result() nor close() holds the GIL: another thread does the work that ends
    the wait."""
    expected = pair.b.expect(1, 1, deadline=WAIT)
    steps = []

    def work():
        steps.extend(range(1000))
        pair.a.write(pair.src_region, pair.remote, imm=1, deadline=WAIT).result(WAIT)

    thread = threading.Thread(target=work)
    thread.start()
    expected.result(WAIT)
    thread.join(WAIT)
    assert len(steps) == 1000


def test_closing_lets_other_threads_run(pair):
    """Goal: close() waits for a callback, and a callback needs the GIL: it must let go of it."""
    inside, proceed, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(_old, _new):
        inside.set()
        proceed.wait(WAIT)
        ended.set()

    pair.b.watcher(slow).add()
    assert inside.wait(WAIT)
    closer = threading.Thread(target=pair.b.close)
    closer.start()
    while pair.b.closed is False:  # this thread runs while the other closes
        pass
    assert not ended.is_set()
    proceed.set()
    closer.join(WAIT)
    assert not closer.is_alive() and ended.is_set()


def test_submissions_from_many_threads_all_settle(pair):
    """Goal: the package may be used from any thread; every immediate is counted."""
    failures = []

    def work():
        try:
            for operation in [pair.a.write(pair.src_region, pair.remote, length=100, imm=1,
                                           deadline=WAIT) for _ in range(100)]:
                operation.result(WAIT)
        except Exception as problem:
            failures.append(problem)

    expected = pair.b.expect(1, 400, deadline=WAIT)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    expected.result(WAIT)
    for thread in threads:
        thread.join(WAIT)
    assert not failures and pair.b.poll_imm(1) == 0


class Stubborn:
    """The library, with a full queue for the first so many submissions."""

    def __init__(self, library, refusals):
        self.library = library
        self.refusals = refusals

    def __getattr__(self, name):
        function = getattr(self.library, name)
        if not name.startswith("wimm_submit_single"):
            return function

        def full(*args):
            if self.refusals:
                self.refusals -= 1
                return wimm.Status.AGAIN
            return function(*args)

        return full


def test_full_queue_is_waited_out_or_raised(pair):
    """Goal: a full queue is back-pressure: block waits for room, and without it nothing changes."""
    open_before = len(_calls.remembered())
    pair.a._lib = Stubborn(pair.a._lib, 5)
    pair.a.write(pair.src_region, pair.remote, deadline=WAIT).result(WAIT)
    pair.a._lib.refusals = 1
    with pytest.raises(wimm.Again) as caught:
        pair.a.write(pair.src_region, pair.remote, block=False)
    assert caught.value.code == wimm.Status.AGAIN and caught.value.scope == wimm.Scope.NONE
    pair.a._lib.refusals = 1 << 30
    with pytest.raises(wimm.Error) as caught:
        pair.a.write(pair.src_region, pair.remote, deadline=0.02)
    assert caught.value.code == wimm.Status.E_TIMEOUT
    pair.a._lib = pair.a._lib.library
    assert len(_calls.remembered()) == open_before


def test_caller_driven_engine_is_driven_by_its_waits():
    """Goal: without threads of its own the engine works while somebody waits or asks for it."""
    with open_engine("tcp", caller_driven=True) as a, open_engine("tcp") as b:
        source, target = a.register(b"bytes", local_only=True), bytearray(5)
        remote = a.open_remote(b.register(target).desc)
        done = a.write(source, remote, imm=99, confirmed=True, deadline=WAIT).result(WAIT)
        assert done.bytes == 5
        assert target == b"bytes" and a.fileno() >= 0
        seen = []
        with a.watcher(lambda old, new: seen.append(new)) as watcher:
            watcher.add(4)
            end = time.monotonic() + WAIT
            while not seen and time.monotonic() < end:
                a.progress() or a.progress_wait(0.01)
        assert seen == [4]


def test_errors_can_be_pickled():
    """Goal: an error crosses a process boundary with all it says."""
    for kind in (wimm.Error, wimm.Cancelled):
        error = kind(wimm.Status.E_PEER_LOST, "gone", 7)
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind and str(copy) == str(error) == "E_PEER_LOST: gone"
        assert (copy.code, copy.scope, copy.peer) == (wimm.Status.E_PEER_LOST, wimm.Scope.PEER, 7)
    unknown = wimm.Error(-999)
    assert unknown.code == -999 and unknown.scope == wimm.Scope.ENGINE
