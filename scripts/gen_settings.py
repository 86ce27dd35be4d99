#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write docs/settings.md from what the library says of its settings.

    scripts/gen_settings.py            write the page
    scripts/gen_settings.py --check    status 1 when the page is not what would be written
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"
HEAD = """# Settings

Written by `scripts/gen_settings.py` from the table in `src/base/config_table.h`;
`wimm info --settings` prints the same with present values and their sources.

A setting is taken from its environment variable, else from a line `name = value` of the file that
`WIMM_CONFIG` names (`/etc/wimm.conf` if it names none), else its default holds. Values are read
once, at the first use. One that is malformed or out of range is reported in the log and ignored.
Bytes take the suffixes K, M, G, T (powers of 1024).

| name | variable | default | range | meaning |
|---|---|---|---|---|
"""


def settings():
    wimm = ROOT / os.environ.get("WIMM_BUILD", "build") / "tools" / "wimm"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("WIMM_")}
    done = subprocess.run([str(wimm), "info", "--json"], check=True, capture_output=True, text=True,
                          env={**clean, "WIMM_CONFIG": "/dev/null"})
    return json.loads(done.stdout)["settings"]


def value(row, name):
    """A number as one would write it in a file."""
    number = row[name]
    if row["type"] == "level":
        return ("off", "error", "warn", "info", "debug")[number]
    if row["type"] == "boolean":
        return "yes" if number else "no"
    if row["type"] == "bytes":
        for unit, factor in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
            if number and number % factor == 0:
                return f"{number // factor}{unit}"
    return str(number)


def line(row):
    unit = f" {row['unit']}" if row["unit"] and row["type"] != "bytes" else ""
    if row["type"] == "text":
        default, reach = row["default"] or "(empty)", "a text"
    elif row["type"] == "boolean":
        default, reach = value(row, "default"), "no or yes"
    else:
        default = value(row, "default") + unit
        reach = f"{value(row, 'min')} to {value(row, 'max')}"
    return f"| {row['name']} | {row['env']} | {default} | {reach} | {row['help']} |\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    text = HEAD + "".join(line(row) for row in settings())
    if not args.check:
        PAGE.write_text(text)
        return 0
    if not PAGE.exists() or PAGE.read_text() != text:
        print(f"{PAGE.relative_to(ROOT)} is out of date; run scripts/gen_settings.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
