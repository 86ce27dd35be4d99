#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare settings of the tcp provider, interleaved: one column a variant, median and best.

    bench/tcp_variants.py --size 4K --request 4096 tcp_sndbuf_bytes=0 tcp_sndbuf_bytes=1M ...

A variant is a comma list of settings (as in the environment, without WIMM_), or "floor:ARGS" for
a run of tcp_floor with these arguments.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess


def run(build, variant, args):
    env = dict(os.environ)
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
    parser.add_argument("variants", nargs="+")
    args = parser.parse_args()

    rows = {variant: [] for variant in args.variants}
    for _ in range(args.rounds):
        for variant, results in rows.items():
            results.append(run(args.build, variant, args))
    for variant, results in rows.items():
        speed = [r["bandwidth_gb_s"] for r in results]
        cpu = [r["cpu_s_per_gb"] for r in results]
        print(f"{variant:44} GB/s median {statistics.median(speed):.3f} best {max(speed):.3f}  "
              f"cpu s/GB median {statistics.median(cpu):.3f} best {min(cpu):.3f}", flush=True)


if __name__ == "__main__":
    main()
