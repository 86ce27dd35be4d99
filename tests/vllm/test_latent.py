# SPDX-License-Identifier: Apache-2.0
"""A model with latent attention (MLA), on each kernel that vLLM has for it on a CPU.

AMX_MLA is what vLLM takes where the CPU has AMX tiles: bfloat16 alone, pages of a multiple of 32
tokens, chunked prefill. CPU_MLA is its reference for every CPU: any type, pages of 16 tokens, no
chunks. Both want rows of 512 + 64. A token has other bits by their prefill than by their decode,
and decode computes a prompt's last token by itself after a hand-over: so what is compared is
prompts whose last chunk is one token (AMX_MLA), or a second hand-over (CPU_MLA).
"""
from pathlib import Path

import pytest

from conftest import prompt

CHUNK = 64
KERNELS = {
    "AMX_MLA": {"dtype": "bfloat16", "block_size": 32, "max_num_batched_tokens": CHUNK},
    "CPU_MLA": {"dtype": "float32", "attention_backend": "CPU_MLA"},
}
PAGE = {"AMX_MLA": 32, "CPU_MLA": 16}
LAYERS = 3


@pytest.fixture(scope="module", params=KERNELS)
def latent(start, request):
    if request.param == "AMX_MLA" and "amx_tile" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no AMX tiles")
    sides = [start(f"{side}-{request.param}", "mla", **KERNELS[request.param])
             for side in ("prefill", "decode")]
    pair = [side.ready() for side in sides]
    assert all(side.kernel == request.param for side in pair)
    return request.param, pair


def hand_over(pair, name, ids):
    """Returns the tokens after it, and the pages' checksums, layer by layer, on both sides."""
    prefill, decode = pair
    decode.decode(name, ids, prefill.address)
    prefill.prefill(name, ids)
    tokens = decode.wait("done", name=f"D-{name}")["tokens"]
    loaded = decode.wait("loaded", transfer=name)
    assert not loaded["failed"], loaded["failed"]
    assert prefill.wait_free() == prefill.blocks and decode.wait_free() == decode.blocks
    return tokens, *(side.ask("sums", transfer=name)["sums"] for side in pair)


@pytest.mark.parametrize("length", (15, 129, 257, 300))
def test_latent_pages_have_equal_checksums_on_both_sides(latent, length):
    """Goal: every page of every layer, one piece a page; tokens equal those of decode alone where
    both compute the last one in the same way."""
    kernel, pair = latent
    ids = prompt(length, length)
    alone = pair[1].alone(f"ref-{length}", ids)
    tokens, ours, theirs = hand_over(pair, f"latent-{length}", ids)
    assert ours == theirs
    pages = -(-length // PAGE[kernel])
    assert len(ours) == LAYERS and len(ours[0]) == pages
    assert len({total for layer in ours for total in layer}) == LAYERS * pages
    if kernel == "AMX_MLA" and length % CHUNK == 1:
        assert tokens == alone


@pytest.mark.parametrize("page", (0, 3, -1))
def test_latent_page_left_out_changes_the_tokens_and_its_checksums_alone(latent, page):
    """Goal: the first, one in the middle, the last full one of a prompt: what is lost shows in the
    tokens, and layer by layer in the checksums of that page and no other."""
    kernel, pair = latent
    ids = prompt(400 + page, 4 * CHUNK + 1)
    whole, ours, _ = hand_over(pair, f"whole-{page}", ids)
    again, _, _ = hand_over(pair, f"again-{page}", ids)
    assert again == whole
    if page < 0:
        page += len(ours[0]) - 1  # the last one has one token, which decode computes anew
    pair[0].ask("fault", kind="lose", page=page)
    try:
        tokens, ours, theirs = hand_over(pair, f"lost-{page}", ids)
    finally:
        pair[0].ask("fault", kind="clear")
    assert tokens != whole
    for layer, other in zip(ours, theirs):
        assert [index for index, (a, b) in enumerate(zip(layer, other)) if a != b] == [page]
