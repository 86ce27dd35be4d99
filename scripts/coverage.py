#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Line coverage of src/core under the simulator: "coverage.py [SEEDS]" builds it for gcov in
build-cov, runs so many seeds (2000), prints lines reached by file and in all, and the functions
that no seed enters."""

import json
import pathlib
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent
BUILD = TOP / "build-cov"


def build():
    if not (BUILD / "build.ninja").exists():
        subprocess.run(
            ["meson", "setup", BUILD, TOP, "-Db_coverage=true", "-Dbuildtype=debugoptimized"],
            check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", BUILD, "tests/sim/sim_test"], check=True,
                   stdout=subprocess.DEVNULL)
    for old in BUILD.rglob("*.gcda"):
        old.unlink()


def lines_of(data_file):
    """The files that one object's counters are about, as gcov says it."""
    out = subprocess.run(["gcov", "-t", "-j", data_file.name], cwd=data_file.parent, check=True,
                         capture_output=True, text=True).stdout
    return json.loads(out)["files"]


def main():
    seeds = sys.argv[1] if len(sys.argv) > 1 else "2000"
    build()
    subprocess.run([BUILD / "tests/sim/sim_test", "--seeds", seeds], check=True,
                   stdout=subprocess.DEVNULL)
    reached_all = lines_all = 0
    unentered = []
    for data_file in sorted(BUILD.rglob("*src/libwimm_int.a.p/core_*.gcda")):
        for entry in lines_of(data_file):
            name = entry["file"].split("src/core/")[-1]
            if "src/core/" not in entry["file"] or not name.endswith(".c"):
                continue
            reached = sum(line["count"] != 0 for line in entry["lines"])
            lines = len(entry["lines"])
            reached_all += reached
            lines_all += lines
            unentered += [f"{name}: {f['name']}" for f in entry["functions"]
                          if f["execution_count"] == 0]
            print(f"{100 * reached / max(lines, 1):5.1f} % of {lines:4} lines  {name}")
    print(f"{100 * reached_all / lines_all:5.1f} % of {lines_all:4} lines  src/core")
    print("never entered:")
    print("\n".join("  " + text for text in unentered))


if __name__ == "__main__":
    main()
