# SPDX-License-Identifier: Apache-2.0
"""The forward pass of a Llama-shaped model in numpy, over a paged K/V cache.

A pass computes a stretch of tokens. In each layer it writes their K and V into the cache's pages,
says so through a hook, and only then computes the attention, which reads every key and value back
from the pages. So nothing about a sequence lives outside of them: another process that is given
the pages continues the sequence with the very bits that the first would have computed.
"""
from dataclasses import dataclass

import numpy as np

from demo.gguf import GgufFile
from demo.paged import PAGE_TOKENS
from demo.tokenizer import Tokenizer

CHUNK_TOKENS = 256


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    rope_base: float
    rms_eps: float


@dataclass(frozen=True)
class Layer:
    """Weights as [out][in]; the projections that read the same input are one matrix."""
    attn_norm: np.ndarray
    qkv: np.ndarray      # rows: heads, kv_heads (K), kv_heads (V), each head_dim
    attn_out: np.ndarray
    ffn_norm: np.ndarray
    gate_up: np.ndarray  # rows: ffn (gate), ffn (up)
    down: np.ndarray


class Model:
    """is_real  a trained language model, not a stand-in.    name  what to call it before a user."""

    def __init__(self, config, embedding, layers, final_norm, tokenizer, name, is_real):
        self.config = config
        self.tokenizer = tokenizer
        self.name = name
        self.is_real = is_real
        self._embedding = embedding
        self._layers = layers
        self._final_norm = final_norm
        half = config.head_dim // 2
        frequency = config.rope_base ** (-np.arange(half) / half)
        angle = np.arange(config.context)[:, None] * frequency
        self._cos = np.cos(angle).astype(np.float32)[:, None]
        self._sin = np.sin(angle).astype(np.float32)[:, None]

    def _norm(self, x, weight):
        mean = np.mean(np.square(x), axis=-1, keepdims=True)
        return x / np.sqrt(mean + np.float32(self.config.rms_eps)) * weight

    def _rotate(self, x, start):
        """Rotary positions on [token][head][head_dim]: dimension i turns with i + head_dim / 2."""
        half = self.config.head_dim // 2
        cos, sin = self._cos[start:start + len(x)], self._sin[start:start + len(x)]
        out = np.empty_like(x)
        out[..., :half] = x[..., :half] * cos - x[..., half:] * sin
        out[..., half:] = x[..., half:] * cos + x[..., :half] * sin
        return out

    def _attend(self, q, keys, values, start, ahead):
        """q [token][head][head_dim] against every key; `ahead` masks those at start and after."""
        c, count = self.config, len(q)
        group = c.heads // c.kv_heads
        q = (q * np.float32(c.head_dim ** -0.5)).reshape(count, c.kv_heads, group, c.head_dim)
        q = q.transpose(1, 2, 0, 3).reshape(c.kv_heads, group * count, c.head_dim)
        out = np.empty((count, c.kv_heads, group, c.head_dim), np.float32)
        for head in range(c.kv_heads):
            scores = q[head] @ keys[head].T
            if count > 1:
                scores.reshape(group, count, -1)[:, :, start:] += ahead
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            mixed = scores @ values[head]
            mixed /= scores.sum(axis=-1, keepdims=True)
            out[:, head] = mixed.reshape(group, count, c.head_dim).transpose(1, 0, 2)
        return out.reshape(count, c.heads * c.head_dim)

    def forward(self, ids, start, cache, table, on_kv=None):
        """Compute tokens `ids` at positions start.. and return the logits after the last of them.

        cache, table  the pages; the tokens before `start` are in them already.
        on_kv  called as on_kv(layer, start, stop) as soon as the pages hold the layer's K and V of
               these tokens for good, before the layer's attention.
        """
        c, stop = self.config, start + len(ids)
        if stop > c.context:
            raise ValueError(f"{stop} tokens, the model's context has {c.context}")
        place = cache.place(table, start, stop)
        ahead = np.triu(np.full((len(ids), len(ids)), -np.inf, np.float32), 1)
        x = self._embedding[np.asarray(ids)]
        for index, layer in enumerate(self._layers):
            qkv = (self._norm(x, layer.attn_norm) @ layer.qkv.T).reshape(len(ids), -1, c.head_dim)
            turned = self._rotate(qkv[:, :c.heads + c.kv_heads], start)
            cache.store(index, place, turned[:, c.heads:], qkv[:, c.heads + c.kv_heads:])
            if on_kv is not None:
                on_kv(index, start, stop)
            keys, values = cache.gather(index, place)
            x += self._attend(turned[:, :c.heads], keys, values, start, ahead) @ layer.attn_out.T
            both = self._norm(x, layer.ffn_norm) @ layer.gate_up.T
            gate, up = both[:, :c.ffn], both[:, c.ffn:]
            with np.errstate(over="ignore"):  # where exp(-gate) is inf the quotient is 0, rightly
                gate = gate / (1 + np.exp(-gate))
            x += (gate * up) @ layer.down.T
        return self._norm(x[-1], self._final_norm) @ self._embedding.T

    def prefill(self, ids, cache, table, on_kv=None, chunk_tokens=CHUNK_TOKENS):
        """Compute a prompt in chunks and return the logits after its last token.

        Two sides that compare bits must use one chunk_tokens: a sum's length decides its rounding.
        """
        if not len(ids):
            raise ValueError("the prompt is empty")
        if chunk_tokens < 1 or chunk_tokens % PAGE_TOKENS:
            raise ValueError(f"chunks of {chunk_tokens} tokens, not a multiple of {PAGE_TOKENS}")
        for start in range(0, len(ids), chunk_tokens):
            logits = self.forward(ids[start:start + chunk_tokens], start, cache, table, on_kv)
        return logits

    def generate(self, first_id, start, cache, table, tokens_max, on_token=None):
        """Continue greedily from `first_id`, the token that prefill's logits named, at `start`.

        Returns (ids, logits): the tokens with first_id in front, at most tokens_max, the end token
        included if it came; and the logits that named each token after the first.
        on_token  called with each token's id, first_id included, once it is known.
        """
        ids, logits = [int(first_id)], []
        while True:
            if on_token is not None:
                on_token(ids[-1])
            if len(ids) >= tokens_max or ids[-1] == self.tokenizer.eos_id:
                return ids, logits
            logits.append(self.forward(ids[-1:], start + len(ids) - 1, cache, table))
            ids.append(greedy(logits[-1]))


def greedy(logits):
    """The most likely token; of equals, the lowest id."""
    return int(np.argmax(logits))


def load(path, name):
    """The language model in a GGUF file of architecture "llama" with tied embeddings."""
    file = GgufFile(path)
    keys = file.keys
    if keys.get("general.architecture") != "llama":
        raise ValueError(f"{path}: architecture {keys.get('general.architecture')!r}, not 'llama'")
    heads, width = keys["llama.attention.head_count"], keys["llama.embedding_length"]
    config = Config(
        layers=keys["llama.block_count"], width=width, heads=heads,
        kv_heads=keys["llama.attention.head_count_kv"], head_dim=width // heads,
        ffn=keys["llama.feed_forward_length"], vocab=keys["llama.vocab_size"],
        context=keys["llama.context_length"], rope_base=keys["llama.rope.freq_base"],
        rms_eps=keys["llama.attention.layer_norm_rms_epsilon"])
    layers = [_load_layer(file, config, f"blk.{index}.") for index in range(config.layers)]
    return Model(config, file.read("token_embd.weight"), layers, file.read("output_norm.weight"),
                 Tokenizer(keys), name, True)


def _load_layer(file, c, prefix):
    rows_q, rows_kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    qkv = np.empty((rows_q + 2 * rows_kv, c.width), np.float32)
    _unweave(file.read(prefix + "attn_q.weight"), c.head_dim, qkv[:rows_q])
    _unweave(file.read(prefix + "attn_k.weight"), c.head_dim, qkv[rows_q:rows_q + rows_kv])
    file.read(prefix + "attn_v.weight", qkv[rows_q + rows_kv:])
    gate_up = np.empty((2 * c.ffn, c.width), np.float32)
    file.read(prefix + "ffn_gate.weight", gate_up[:c.ffn])
    file.read(prefix + "ffn_up.weight", gate_up[c.ffn:])
    return Layer(attn_norm=file.read(prefix + "attn_norm.weight"), qkv=qkv,
                 attn_out=file.read(prefix + "attn_output.weight"),
                 ffn_norm=file.read(prefix + "ffn_norm.weight"), gate_up=gate_up,
                 down=file.read(prefix + "ffn_down.weight"))


def _unweave(weight, head_dim, out):
    """GGUF weaves the two halves of each head's q and k rows; put them one after the other."""
    heads, width = len(weight) // head_dim, weight.shape[1]
    woven = weight.reshape(heads, head_dim // 2, 2, width)
    out.reshape(heads, 2, head_dim // 2, width)[...] = woven.swapaxes(1, 2)
