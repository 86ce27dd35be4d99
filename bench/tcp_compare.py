#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hold the tcp provider against its floors: interleaved rounds, median and best of each.

    bench/tcp_compare.py [--build build] [--rounds 5] [--total 512M]

Each ratio is taken from figures of the same run; rounds are interleaved so that a change of the
machine's mood hits all programs alike. Every command is printed.
"""

import argparse
import json
import pathlib
import statistics
import subprocess

CASES = {
    "1 MiB": (["tcp_floor", "stream", "--size", "1M"],
              ["tcp_prov", "--size", "1M", "--request", "16"]),
    "4 KiB": (["tcp_floor", "framed", "--size", "4K", "--batch", "64"],
              ["tcp_prov", "--size", "4K", "--request", "4096"]),
    "64 KiB": (["tcp_floor", "framed", "--size", "64K", "--batch", "16"],
               ["tcp_prov", "--size", "64K", "--request", "256"]),
}


def run(build, command, extra):
    argv = [str(build / "bench" / command[0]), *command[1:], *extra, "--json"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout)["bandwidth_gb_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--total", default="512M")
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--floor-args", default="", help="for instance '--poll --sockbuf 1M'")
    parser.add_argument("--prov-args", default="", help="for instance --sleep")
    args = parser.parse_args()
    total = ["--total", args.total]

    for name in args.case or CASES:
        floor, prov = CASES[name]
        figures = {"floor": [], "tcp": []}
        for _ in range(args.rounds):
            figures["floor"].append(run(args.build, floor, total + args.floor_args.split()))
            figures["tcp"].append(run(args.build, prov, total + args.prov_args.split()))
        print(f"{name}: {' '.join(floor)} | {' '.join(prov)}")
        for who, values in figures.items():
            print(f"  {who:5} median {statistics.median(values):.3f} best {max(values):.3f} GB/s")
        ratios = [t / f for t, f in zip(figures["tcp"], figures["floor"])]
        print(f"  ratio median {statistics.median(ratios):.2f}, of the bests "
              f"{max(figures['tcp']) / max(figures['floor']):.2f}")


if __name__ == "__main__":
    main()
