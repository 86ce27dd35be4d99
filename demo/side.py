# SPDX-License-Identifier: Apache-2.0
"""What the two processes of a hand-off have in common: an engine and its pages."""
import zlib

import numpy as np

import wimm
from demo import paged
from wimm import kv

DEADLINE_S = 300


def add_arguments(parser):
    parser.add_argument("--provider", default="host")
    parser.add_argument("--nics", default=None)
    parser.add_argument("--model", choices=("real", "seeded"), default="real")
    parser.add_argument("--dtype", choices=paged.DTYPES, default="float32")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the pages")


class Side:
    """An engine, a cache of `pages` pages that are full of NaN, and a table in random order.

    NaN (all bits set) is what no computation leaves behind: a page that never arrives is seen.
    """

    def __init__(self, args, mod, tokens_max, **options):
        c = mod.config
        self.page_total = paged.page_count(tokens_max) + 3
        self.buffer = np.full(paged.PagedCache.size_bytes(c, self.page_total, args.dtype), 0xff,
                              np.uint8)
        self.cache = paged.PagedCache(c, self.buffer, self.page_total, args.dtype)
        self.table = np.random.default_rng(args.seed).permutation(self.page_total)
        self.layout = kv.Layout(
            layers=c.layers, kv_heads=c.kv_heads, head_dim=c.head_dim,
            elem_bytes=np.dtype(args.dtype).itemsize, elem_type=paged.DTYPES.index(args.dtype),
            page_tokens=paged.PAGE_TOKENS, pages=self.page_total,
            model_tag=zlib.crc32(f"{mod.name} {c}".encode()))
        nics = args.nics
        if nics is None and args.provider == "tcp":
            nics = "127.0.0.1:0"
        self.engine = wimm.Engine(args.provider, nics, heartbeat=1, peer_timeout=30)
        region = self.engine.register(self.buffer)
        self.kv = kv.Cache(self.engine, region, self.layout, max_requests=4,
                           tail_room=c.vocab * 4, **options)  # the logits beside the first token

    def pages_of(self, tokens):
        """The pages of the first `tokens` tokens, as the transfer wants them."""
        return self.table[:paged.page_count(tokens)].astype(np.uint32)

    def poison(self):
        self.buffer[...] = 0xff

