# SPDX-License-Identifier: Apache-2.0
"""Two API servers and a proxy that calls both at once. The tests run in this order."""
import http.client
import random
import re
import threading

import pytest

from conftest import prompt
from servers import Proxy, Server, free_port, in_parallel, log_of, wait_until, wimm_transfer

PROMPTS = [prompt(i, random.Random(i).randint(20, 500)) for i in range(40)]
REQUESTS = 200
AT_ONCE = 6
LEASE_S = 20  # pages of a decode that died before it asked are kept so long


@pytest.fixture(scope="module")
def service(models, tmp_path_factory):
    model, port = models("gqa"), free_port()
    servers = [Server(log_of(tmp_path_factory, "prefill"), model,
                      wimm_transfer("kv_producer", port, lease=LEASE_S),
                      VLLM_LOGGING_LEVEL="INFO", VLLM_LOG_STATS_INTERVAL="1"),
               Server(log_of(tmp_path_factory, "decode"), model, wimm_transfer("kv_consumer", 0))]
    try:
        yield Proxy(*(server.ready() for server in servers), [f"127.0.0.1:{port}"])
    finally:
        for server in servers:
            server.stop()


@pytest.fixture(scope="module")
def wanted(service):
    """What decode computes by itself."""
    return [service.decode.post({"prompt": ids, "max_tokens": 16})[0] for ids in PROMPTS]


def check(service, wanted, numbers, during=None):
    """Complete prompts by these numbers; `during` happens once some are answered, with others under
    way. Returns how many answers there were; none is wrong."""
    some = threading.Semaphore(0)

    def complete(number):
        try:
            return service.complete(PROMPTS[number])
        finally:
            some.release()

    def disturb():
        for _ in range(2 * AT_ONCE):
            some.acquire()
        during()

    helper = threading.Thread(target=disturb if during is not None else lambda: None)
    helper.start()
    answers = in_parallel(AT_ONCE, complete, numbers)
    helper.join()
    for number, answer in zip(numbers, answers):
        if isinstance(answer, Exception):
            assert isinstance(answer, (OSError, http.client.HTTPException)), answer
        else:
            assert answer == wanted[number], f"prompt {number}"
    problems = [answer for answer in answers if isinstance(answer, Exception)]
    if problems:
        print(f"{len(problems)} without an answer, one with {problems[0]!r}\n"
              f"{service.decode.tail()}")
    return len(answers) - len(problems)


def no_block_is_lost(*servers):
    for server in servers:
        wait_until(lambda one=server: one.usage() == 0, "without a used block", 60, server.tail)


def loads_failed(server):
    return len(re.findall("pages of request .* do not come", server.log.read_text()))


def test_two_hundred_requests_through_both_servers_are_right(service, wanted):
    """Goal: pages flow while prefill computes; no token is wrong, no block is lost, no transfer
    fails, and prefill's log says what of them was hidden behind compute."""
    numbers = [i % len(PROMPTS) for i in range(REQUESTS)]
    assert check(service, wanted, numbers) == REQUESTS
    assert loads_failed(service.decode) == 0
    no_block_is_lost(service.prefill, service.decode)
    said = "KV Transfer metrics: prompts sent=.* layer by layer=[1-9].* hidden %=[0-9]"
    wait_until(lambda: re.search(said, service.prefill.log.read_text()), "in the log", 60,
               service.prefill.tail)


def test_prefill_killed_in_mid_request_costs_no_answer(service, wanted):
    """Goal: decode computes what does not come, during and after; then prefill is back at its
    address and is used again."""
    numbers = [i % len(PROMPTS) for i in range(60)]
    assert check(service, wanted, numbers, service.prefill.kill) == 60
    assert loads_failed(service.decode) > 0
    no_block_is_lost(service.decode)
    service.prefill.start()
    service.prefill.ready()
    before = loads_failed(service.decode)
    assert check(service, wanted, numbers) == 60
    assert loads_failed(service.decode) == before
    no_block_is_lost(service.prefill, service.decode)


def test_decode_killed_in_mid_request_leaves_prefill_whole(service, wanted):
    """Goal: its requests are lost, prefill gets all its blocks back, and a new decode is served."""
    numbers = [i % len(PROMPTS) for i in range(60)]
    assert 0 < check(service, wanted, numbers, service.decode.kill) < 60
    no_block_is_lost(service.prefill)
    service.decode.start()
    service.decode.ready()
    assert check(service, wanted, numbers) == 60
    no_block_is_lost(service.prefill, service.decode)
