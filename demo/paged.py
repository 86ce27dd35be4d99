# SPDX-License-Identifier: Apache-2.0
"""K and V of a sequence in pages of 16 tokens, in memory that the caller provides.

The memory is one array [layer][page][K, V][kv head][16 tokens][head_dim]. A page holds one layer's
K and V side by side, so that it is two equal writes, and each kv head's part of it is contiguous,
so that a rank that owns some of the heads owns whole segments. A page table names the pages of a
sequence in the order of its tokens; any pages will do, in any order.
"""
import numpy as np

PAGE_TOKENS = 16
DTYPES = ("float32", "float16")


def page_count(tokens_count):
    """Pages that a sequence of so many tokens takes."""
    return -(-tokens_count // PAGE_TOKENS)


class PagedCache:
    """The pages of one process, over `buffer`: anything writable with the buffer protocol.

    layers, kv_heads, head_dim  the model's.
    pages  how many pages a layer has.     dtype  float32, or float16 to halve the bytes.
    Somebody else may write pages while nobody here reads them; nothing of them is kept elsewhere.
    """

    def __init__(self, config, buffer, pages, dtype="float32"):
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r}, not one of {DTYPES}")
        need_bytes = self.size_bytes(config, pages, dtype)
        have_bytes = memoryview(buffer).nbytes
        if have_bytes < need_bytes:
            raise ValueError(f"{pages} pages take {need_bytes} bytes, the buffer has {have_bytes}")
        flat = np.frombuffer(buffer, dtype, need_bytes // np.dtype(dtype).itemsize)
        if not flat.flags.writeable:
            raise ValueError("the buffer is read-only")
        self.page_total = pages
        self.pages = flat.reshape(config.layers, pages, 2, config.kv_heads, PAGE_TOKENS,
                                  config.head_dim)
        self._scratch = np.empty(0, np.float32)
        self._narrow = np.empty(0, dtype)

    @staticmethod
    def size_bytes(config, pages, dtype="float32"):
        """Bytes that the buffer must have."""
        return (config.layers * pages * 2 * config.kv_heads * PAGE_TOKENS * config.head_dim
                * np.dtype(dtype).itemsize)

    @property
    def half_page_bytes(self):
        """Bytes of the K, or of the V, of one page of one layer: the unit of a transfer."""
        return self.pages[0, 0, 0].nbytes

    @property
    def layer_bytes(self):
        """Bytes from one layer's first page to the next layer's."""
        return self.pages[0].nbytes

    def place(self, table, start, stop):
        """Where tokens start..stop of the sequence go and what a reader of 0..stop gathers."""
        return _Place(self, np.asarray(table, np.intp), start, stop)

    def tokens(self, table, count):
        """A copy of the first `count` tokens: [layer][K, V][kv head][token][head_dim]."""
        pages = self.pages[:, np.asarray(table, np.intp)[:page_count(count)]]
        layers, used, _, heads, _, dim = pages.shape
        ordered = pages.transpose(0, 2, 3, 1, 4, 5)
        return ordered.reshape(layers, 2, heads, used * PAGE_TOKENS, dim)[:, :, :, :count].copy()

    def gather(self, layer, place):
        """K and V of tokens 0..stop, float32 [kv head][token][head_dim], until the next call."""
        heads, dim = self.pages.shape[3], self.pages.shape[5]
        rows = self.pages[layer].reshape(-1, PAGE_TOKENS * dim)
        size = place.gather_rows.size * rows.shape[1]
        widen = rows.dtype != np.float32
        if self._scratch.size < size:
            self._scratch = np.empty(2 * size, np.float32)
            self._narrow = np.empty(2 * size, rows.dtype) if widen else self._scratch
        found = self._narrow[:size].reshape(place.gather_rows.shape + rows.shape[1:])
        # The rows were checked against the number of pages; "clip" spares a second buffer.
        np.take(rows, place.gather_rows, axis=0, out=found, mode="clip")
        if widen:
            self._scratch[:size] = self._narrow[:size]
        both = self._scratch[:size].reshape(2, heads, -1, dim)
        return both[0, :, :place.stop], both[1, :, :place.stop]

    def store(self, layer, place, k, v):
        """Write K and V, [token][kv head][head_dim], of the tokens start..stop."""
        rows = self.pages[layer].reshape(-1, self.pages.shape[5])
        rows[place.k_rows] = k
        rows[place.v_rows] = v


class _Place:
    """The indices of one stretch of tokens; the same for every layer, so computed once."""

    def __init__(self, cache, table, start, stop):
        used = page_count(stop)
        if not 0 <= start < stop:
            raise ValueError(f"tokens {start} to {stop} are no stretch")
        if table.ndim != 1 or len(table) < used:
            raise ValueError(f"{stop} tokens need {used} pages, the table has {table.size}")
        table = table[:used]
        if table.min() < 0 or table.max() >= cache.page_total:
            raise ValueError(f"the table names pages {table.min()} to {table.max()}, "
                             f"the cache has 0 to {cache.page_total - 1}")
        heads = cache.pages.shape[3]
        self.stop = stop
        # Counted in kv heads of one page: page, K or V, kv head.
        self.gather_rows = np.arange(2 * heads)[:, None] + table * (2 * heads)
        # Counted in tokens of one kv head: [token][kv head], as the model computes them.
        at = np.arange(start, stop)
        head_rows = (table[at // PAGE_TOKENS] * (2 * heads))[:, None] + np.arange(heads)
        self.k_rows = head_rows * PAGE_TOKENS + (at % PAGE_TOKENS)[:, None]
        self.v_rows = self.k_rows + heads * PAGE_TOKENS
