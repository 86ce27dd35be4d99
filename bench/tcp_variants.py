#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare settings of the tcp provider, interleaved: one column a variant, median and best.

    bench/tcp_variants.py --size 4K --request 4096 tcp_sndbuf_bytes=0 tcp_sndbuf_bytes=1M ...

A variant is a comma list of settings (as in the environment, without WIMM_), or "floor:ARGS" for
a run of tcp_floor with these arguments. "DIR@SETTINGS" takes the programs of another build.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time


def busy_s():
    """CPU seconds that the whole machine has worked so far."""
    with open("/proc/stat", encoding="ascii") as stat:
        fields = [int(f) for f in stat.readline().split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def own_s():
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def disturbance(action):
    """Its result, and the share of the machine that others used meanwhile."""
    busy, own, start = busy_s(), own_s(), time.monotonic()
    result = action()
    spent = time.monotonic() - start
    others = (busy_s() - busy) - (own_s() - own)
    return result, max(others, 0) / (spent * os.cpu_count())


def run(build, variant, args):
    env = dict(os.environ)
    if "@" in variant:
        folder, variant = variant.split("@")
        build = pathlib.Path(folder)
    if variant.startswith("floor:"):
        argv = [str(build / "bench" / "tcp_floor"), *variant[6:].split()]
    else:
        argv = [str(build / "bench" / "tcp_prov"), "--size", args.size, "--request", args.request,
                *args.prov_args.split()]
        for pair in filter(None, variant.split(",")):
            name, value = pair.split("=")
            env["WIMM_" + name.upper()] = value
    done = subprocess.run([*argv, "--total", args.total, "--json"], check=True, env=env,
                          capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--total", default="256M")
    parser.add_argument("--size", default="4K")
    parser.add_argument("--request", default="4096")
    parser.add_argument("--prov-args", default="")
    parser.add_argument("--others", type=float, default=1.0,
                        help="discard a run while others use more than this share of the machine")
    parser.add_argument("--patience", type=float, default=300, help="seconds for all runs")
    parser.add_argument("variants", nargs="+")
    args = parser.parse_args()

    rows = {variant: [] for variant in args.variants}
    end = time.monotonic() + args.patience
    while time.monotonic() < end and min(map(len, rows.values())) < args.rounds:
        for variant, results in rows.items():
            result, others = disturbance(lambda v=variant: run(args.build, v, args))
            if others <= args.others:
                results.append(result)
            else:
                time.sleep(0.2)
    for variant, results in rows.items():
        if not results:
            print(f"{variant:44} no undisturbed run")
            continue
        speed = [r["bandwidth_gb_s"] for r in results]
        cpu = [r["cpu_s_per_gb"] for r in results]
        print(f"{variant:44} {len(results):2} runs  GB/s median {statistics.median(speed):.3f} "
              f"best {max(speed):.3f}  cpu s/GB median {statistics.median(cpu):.3f} "
              f"best {min(cpu):.3f}", flush=True)


if __name__ == "__main__":
    main()
