# SPDX-License-Identifier: Apache-2.0
"""Prompts that prefill computes in chunks that end inside pages, and prefixes that a side has."""
import pytest

from conftest import prompt

CHUNK = 96  # tokens; a page has 128


@pytest.fixture(scope="module")
def pair(start):
    prefill = start("prefill", max_num_batched_tokens=CHUNK, enable_prefix_caching=True)
    # 15 blocks: each is used again and again, in ever another order.
    decode = start("decode", kv_cache_memory_bytes=4 << 20, enable_prefix_caching=True)
    return prefill.ready(), decode.ready()


def reference(decode, name, ids):
    """What decode computes by itself, after which it has forgotten the prompt."""
    tokens = decode.alone(f"ref-{name}", ids)
    decode.ask("reset")
    return tokens


def end(pair, name):
    """Returns the tokens and what decode said when the pages were there."""
    prefill, decode = pair
    loaded = decode.wait("loaded", transfer=name)
    assert not loaded["failed"], loaded["failed"]
    done = decode.wait("done", name=f"D-{name}")
    prefill.wait("done", name=f"P-{name}")
    assert prefill.wait_free() == prefill.blocks and decode.wait_free() == decode.blocks
    return done["tokens"], loaded


@pytest.mark.parametrize("length", (97, 300, 700))
def test_prompt_in_chunks_gives_the_tokens_of_decode_alone(pair, length):
    """Goal: chunks end inside pages; blocks are told with the chunk they are for."""
    name, ids = f"chunks-{length}", prompt(length, length)
    wanted = reference(pair[1], name, ids)
    pair[1].decode(name, ids, pair[0].address)
    pair[0].prefill(name, ids)
    assert end(pair, name)[0] == wanted


def test_statistics_say_what_of_a_transfer_was_hidden(pair):
    """Goal: of a prompt that decode asks for during its first chunk some of the time lies before
    its last layer, of one that it asks for when all is computed none; both count the same bytes."""
    prefill, decode = pair
    ids, sent = prompt(42, 300), []
    for early in (True, False):
        name = f"stats-{early}"
        for side in pair:
            side.ask("reset")
            side.ask("stats")
        if early:
            prefill.ask("fault", kind="stop_after_layer", layer=1)
        prefill.prefill(name, ids)
        prefill.wait("stopped") if early else prefill.wait("done", name=f"P-{name}")
        decode.decode(name, ids, prefill.address)
        if early:
            prefill.wait("serving", transfer=name)
            prefill.say("go")
            prefill.wait("done", name=f"P-{name}")
        assert not decode.wait("loaded", transfer=name)["failed"]
        assert prefill.wait_free() == prefill.blocks and decode.wait_free() == decode.blocks
        prefill.ask("fault", kind="clear")
        said = prefill.ask("stats")
        sums = said["sums"]
        assert (sums["prompts_sent"], sums["asked_early"]) == (1, early)
        assert sums["exposed_s"] < sums["sending_s"] if early else said["says"]["hidden %"] == 0
        come = decode.ask("stats")["sums"]
        assert (come["loads_come"], come["loads_failed"]) == (1, 0)
        sent.append(sums["bytes_sent"])
    assert sent[0] == sent[1] > 0


def test_decode_that_asks_in_the_middle_of_a_pass_gets_all_layers(pair):
    """Goal: the request comes between two layers of the second chunk: the layers before it leave at
    once, together with the first chunk."""
    prefill, decode = pair
    ids = prompt(41, 300)
    wanted = reference(decode, "mid", ids)
    prefill.ask("fault", kind="stop_after_layer", layer=1, passes=2)
    prefill.prefill("mid", ids)
    prefill.wait("stopped")
    decode.decode("mid", ids, prefill.address)
    serving = prefill.wait("serving", transfer="mid")
    assert (serving["final"], serving["layers"]) == (CHUNK, 2)
    prefill.say("go")
    assert end(pair, "mid")[0] == wanted
    prefill.ask("fault", kind="clear")


def test_prefix_that_decode_has_is_not_sent_again(pair):
    """Goal: two whole pages are there from an earlier prompt; only what follows them travels."""
    prefill, decode = pair
    first, second = prompt(50, 300), prompt(50, 256) + prompt(51, 130)
    wanted = reference(decode, "prefix", second)
    for name, ids in (("before", first), ("prefix", second)):
        decode.decode(name, ids, prefill.address)
        prefill.prefill(name, ids)
        tokens, loaded = end(pair, name)
    assert loaded["first_token"] == 256 and len(loaded["blocks"]) == 2
    assert tokens == wanted


def test_prefix_that_prefill_has_is_sent_with_the_first_chunk(pair):
    """Goal: prefill computes a part only; all pages arrive."""
    prefill, decode = pair
    ids = prompt(60, 400)
    wanted = reference(decode, "hit", ids)
    prefill.alone("warm", ids, tokens=1)
    decode.decode("hit", ids, prefill.address)
    prefill.prefill("hit", ids)
    tokens, loaded = end(pair, "hit")
    assert loaded["first_token"] == 0 and len(loaded["blocks"]) == 4
    assert tokens == wanted


def test_blocks_in_no_order_carry_equal_pages(pair):
    """Goal: several prompts at once from both pools, until their blocks are in no order; the pages
    have equal checksums all the same."""
    prefill, decode = pair
    mixed = False
    for turn in range(6):
        names = [f"mix-{turn}-{i}" for i in range(3)]
        for i, name in enumerate(names):
            ids = prompt(70 + 3 * turn + i, 200 + 100 * i)
            decode.decode(name, ids, prefill.address, tokens=2 + 3 * i)
            prefill.prefill(name, ids)
        for name in names:
            decode.wait("done", name=f"D-{name}")
            prefill.wait("done", name=f"P-{name}")
        assert prefill.wait_free() == prefill.blocks and decode.wait_free() == decode.blocks
        for name in names:
            ours, theirs = (side.ask("sums", transfer=name) for side in pair)
            assert ours["sums"] == theirs["sums"], name
            mixed = mixed or theirs["blocks"] not in (
                sorted(theirs["blocks"]), sorted(theirs["blocks"], reverse=True))
    assert mixed
