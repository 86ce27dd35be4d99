#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to first token through a prefill and a decode server of vLLM, wimm's connector beside vLLM's
NixlConnector, in one run.

    tests/vllm/first_token.py [--turns 11] [--tokens 500] [--json]

Needs the environment of tests/vllm/env/make.sh. Four servers run at the same time, two a connector;
each turn sends one prompt through each way, in an order that rotates. The time is from the first
call of the proxy to the first token that decode streams; the text is compared with what decode
computes by itself. Ratios are taken turn by turn, the median counts. Where NIXL does not run, its
error is printed and wimm is measured alone.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

from conftest import ENV, PYTHON, environ, prompt
from servers import Proxy, Server, free_port, wimm_transfer

HERE = pathlib.Path(__file__).resolve().parent
WARM = 3
ANSWER = 4  # tokens that are compared
NIXL = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
        "remote_block_ids": None, "remote_host": None, "remote_port": None}


class OneAfterTheOther:
    """A proxy that has prefill's answer before it calls decode."""

    def __init__(self, prefill, decode, params):
        self.prefill, self.decode, self.params = prefill, decode, params

    def complete(self, ids, tokens, begun):
        _, params = self.prefill.post({"prompt": ids, "max_tokens": 1,
                                       "kv_transfer_params": self.params})
        return self.decode.post({"prompt": ids, "max_tokens": tokens,
                                 "kv_transfer_params": params}, begun)[0]


class Way:
    """A proxy and the times it took."""

    def __init__(self, name, decode, proxy):
        self.name, self.decode, self.proxy = name, decode, proxy
        self.times = []

    def turn(self, ids):
        """Seconds from the first call to the first token."""
        wanted = self.decode.post({"prompt": ids, "max_tokens": ANSWER})[0]
        start, seen = time.monotonic(), []
        text = self.proxy.complete(ids, ANSWER, lambda: seen.append(time.monotonic() - start))
        if text != wanted:
            raise RuntimeError(f"{self.name}: the text is {text!r}, decode alone says {wanted!r}")
        self.times.append(seen[0])


class Bench:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.model = self.folder / "model"
        self.servers = []
        subprocess.run([PYTHON, HERE / "model.py", self.model, "gqa"], check=True,
                       env=environ(), capture_output=True)

    def pair(self, name, *transfers):
        """Start two servers; they come up together."""
        made = [Server(self.folder / f"{name}-{role}.log", self.model, transfer,
                       VLLM_NIXL_SIDE_CHANNEL_PORT=str(free_port()))
                for role, transfer in zip(("prefill", "decode"), transfers)]
        self.servers += made
        return made

    def wimm(self):
        port = free_port()
        prefill, decode = self.pair("wimm", wimm_transfer("kv_producer", port),
                                    wimm_transfer("kv_consumer", 0))
        return [Way("wimm, both at once", decode, Proxy(prefill, decode, [f"127.0.0.1:{port}"])),
                Way("wimm, one after the other", decode,
                    OneAfterTheOther(prefill, decode, {"do_remote_decode": True}))]

    def nixl(self):
        prefill, decode = self.pair("nixl", *(
            {"kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": "cpu"}
            for role in ("kv_producer", "kv_consumer")))
        return [Way("nixl, one after the other", decode, OneAfterTheOther(prefill, decode, NIXL))]

    def why(self, name):
        """What these servers say of themselves: the first error of each, and the last."""
        said = []
        for log in sorted(self.folder.glob(f"{name}-*.log")):
            errors = re.findall(r"^.*?(\w*(?:Error|Exception)\b: .*)$",
                                log.read_text(errors="replace"), re.MULTILINE)
            said += [f"{log.stem}: {' ... '.join(dict.fromkeys((errors[0], errors[-1])))}"
                     ] if errors else []
        return "; ".join(said) or "no error in its logs"

    def stop(self):
        for server in self.servers:
            server.stop()


def begin(bench):
    """The ways that work, each warmed up, and why NIXL is not among them."""
    ways = bench.wimm()
    try:
        warm_up(ways, bench.servers)
    except (AssertionError, OSError, RuntimeError) as problem:
        sys.exit(f"{str(problem).splitlines()[0]}; {bench.why('wimm')}")
    try:
        nixl = bench.nixl()
        warm_up(nixl, bench.servers[2:])
    except (AssertionError, OSError, RuntimeError) as problem:
        for server in bench.servers[2:]:
            server.stop()
        return ways, f"{str(problem).splitlines()[0]}; {bench.why('nixl')}"
    return ways + nixl, ""


def warm_up(ways, servers):
    for server in servers:
        server.ready()
    for way in ways:
        for turn in range(WARM):
            way.turn(prompt(1000 + turn, 300))
        way.times = []


def report(ways, args, trouble):
    """Figures of all ways, and ratios to the last where that is NIXL's."""
    load = os.getloadavg()[0]
    rows = [{"way": way.name, "tokens": args.tokens, "turns": len(way.times),
             "p50_ms": statistics.median(way.times) * 1e3, "best_ms": min(way.times) * 1e3,
             "worst_ms": max(way.times) * 1e3} for way in ways]
    nixl = ways[-1] if not trouble else None
    for row, way in zip(rows, ways):
        if nixl is not None:
            row["ratio_to_nixl"] = statistics.median(
                ours / theirs for ours, theirs in zip(way.times, nixl.times))
    if args.json:
        print(json.dumps({"rows": rows, "nixl": trouble or "runs", "load": load}))
        return
    print(f"time to first token, prompts of {args.tokens} tokens, {args.turns} turns interleaved, "
          f"{os.cpu_count()} CPUs, load average {load:.1f}")
    for row in rows:
        ratio = f", {row['ratio_to_nixl']:.2f} of nixl" if nixl is not None else ""
        print(f"  {row['way']:26} p50 {row['p50_ms']:7.1f} ms   ({row['best_ms']:.1f} to "
              f"{row['worst_ms']:.1f}){ratio}")
    if trouble:
        print(f"  NIXL does not run here: {trouble}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.turns < 1 or not 1 <= args.tokens <= 1000:
        parser.error("--turns begins with 1, --tokens is 1 to 1000")
    if not (ENV / "complete").exists():
        sys.exit(f"no vLLM environment in {ENV}: tests/vllm/env/make.sh makes it")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder)
        try:
            ways, trouble = begin(bench)
            for turn in range(args.turns):
                ids = prompt(turn, args.tokens)
                for at in range(len(ways)):
                    ways[(at + turn) % len(ways)].turn(ids)
            report(ways, args, trouble)
        finally:
            bench.stop()


if __name__ == "__main__":
    main()
