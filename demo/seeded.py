# SPDX-License-Identifier: Apache-2.0
"""A stand-in for when the model package cannot be had: Llama-shaped, its weights drawn from a seed.

It has the real model's parts (grouped heads, rotary positions, a paged cache) and so exercises the
transfer in the same way, but it has learnt nothing and its text means nothing. Whoever shows its
text to a user must say so; `is_real` is False for that purpose.
"""
import numpy as np

from demo.model import Config, Layer, Model

CONFIG = Config(layers=8, width=192, heads=6, kv_heads=2, head_dim=64, ffn=512, vocab=98,
                context=8192, rope_base=10000.0, rms_eps=1e-5)
_SEED = 20
_SHARPNESS = 2.0  # of the q and k weights: with flat attention the text repeats one token for ever


class AsciiTokenizer:
    """One token for each printable ASCII character and the newline, and two control tokens."""

    _TEXT = "\n" + "".join(map(chr, range(32, 127)))
    _OTHER = "?"  # what any other character becomes

    def __init__(self):
        self._ids = {char: index for index, char in enumerate(self._TEXT)}
        self._start_id = len(self._TEXT)
        self.eos_id = self._start_id + 1
        self.vocab_count = self.eos_id + 1

    def encode(self, text):
        return [self._ids.get(char, self._ids[self._OTHER]) for char in text]

    def encode_chat(self, user, system=""):
        """Token ids of a conversation in which the other side speaks next."""
        return [self._start_id, *self.encode(system + user), self.eos_id, self._start_id]

    def decode(self, ids):
        return "".join(self._TEXT[index] for index in ids if index < len(self._TEXT))


def seeded(seed=_SEED):
    """The stand-in; the same seed gives the same weights on every machine with this numpy."""
    c = CONFIG
    draw = np.random.Generator(np.random.PCG64(seed))

    def matrix(rows, columns):
        weight = draw.standard_normal((rows, columns), np.float32)
        return weight * np.float32(columns ** -0.5)

    ones = np.ones(c.width, np.float32)
    inner, inner_kv = c.heads * c.head_dim, c.kv_heads * c.head_dim

    def projections():
        qkv = matrix(inner + 2 * inner_kv, c.width)
        qkv[:inner + inner_kv] *= np.float32(_SHARPNESS)
        return qkv

    layers = [Layer(attn_norm=ones, qkv=projections(),
                    attn_out=matrix(c.width, inner), ffn_norm=ones,
                    gate_up=matrix(2 * c.ffn, c.width), down=matrix(c.width, c.ffn))
              for _ in range(c.layers)]
    return Model(c, matrix(c.vocab, c.width), layers, ones, AsciiTokenizer(),
                 f"a stand-in with random weights (seed {seed}), not a language model", False)
