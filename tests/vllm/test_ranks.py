# SPDX-License-Identifier: Apache-2.0
"""Prefill with one tensor-parallel rank, decode with two, each with half of the heads."""
import pytest

from conftest import prompt
from servers import Proxy, Server, free_port, in_parallel, log_of, wait_until, wimm_transfer


@pytest.fixture(scope="module")
def service(models, tmp_path_factory):
    model, port = models("gqa"), free_port()
    servers = [Server(log_of(tmp_path_factory, "prefill"), model,
                      wimm_transfer("kv_producer", port, "fail")),
               Server(log_of(tmp_path_factory, "decode"), model,
                      wimm_transfer("kv_consumer", 0, "fail"), "--tensor-parallel-size", "2",
                      VLLM_CPU_OMP_THREADS_BIND="0|1")]
    try:
        yield Proxy(*(server.ready() for server in servers), [f"127.0.0.1:{port}"])
    finally:
        for server in servers:
            server.stop()


def test_two_decode_ranks_get_their_heads_from_one_prefill_rank(service):
    """Goal: tokens equal those of two ranks alone; a transfer that failed would be an error."""
    prompts = [prompt(i, length) for i, length in enumerate((64, 129, 257, 300))]
    wanted = [service.decode.post({"prompt": ids, "max_tokens": 16})[0] for ids in prompts]
    assert [service.complete(ids) for ids in prompts] == wanted
    assert in_parallel(4, service.complete, prompts) == wanted
    for server in (service.prefill, service.decode):
        wait_until(lambda one=server: one.usage() == 0, "without a used block", 60, server.tail)
