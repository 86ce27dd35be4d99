#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write docs/api.md, a line for each public function, from the comments in include/wimm.

    scripts/gen_api.py            write the page, as scripts/gen_bindings.py does
    scripts/gen_api.py --check    status 1 when the page is not what would be written

The comment in front of a function is read: its first sentence, and what stands behind "Thread:" and
"Blocks:". "as wimm_other()" there means what the comment of that function says.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
# The order of the page: what a program meets first comes first.
HEADERS = ("status", "engine", "region", "transfer", "imm", "watcher", "cuda", "kv")
TITLES = re.compile(r"(?:Returns|Thread|Blocks|Owns)")
HEAD = """# Public functions

Written by `scripts/gen_api.py` from the comments in `include/wimm`, which say the rest: parameters,
each status that is returned, what stays alive until when. *Thread*: who may call it. *Blocks*:
whether it may wait, and for what. A dash: the comment does not say.

"""


class Malformed(Exception):
    """A public function without a comment that can be read."""


def field(comment: str, title: str) -> str:
    """What stands behind "Title:", or behind "Title, Other:" where one text is for several."""
    names = r"(?:(?:Returns|Thread|Blocks|Owns)(?:, )?)*"
    start = re.search(rf"\b{names}{title}(?:, {names})?:\s*", comment)
    if not start:
        return ""
    rest = re.split(rf"(?:\.\s+|\s\s+)(?={TITLES.pattern}(?:, {TITLES.pattern})*:)|\s+\*out\b",
                    comment[start.end():])[0]
    return " ".join(rest.split()).strip(" .;,")


def first_sentence(comment: str) -> str:
    return " ".join(re.split(r"\.(?=\s|$)", comment.strip(), maxsplit=1)[0].split())


def functions(header: str, text: str) -> Iterator[tuple[str, str]]:
    """(name, comment) of each, in the order of the header. Between the comment and the function may
    stand the struct that it takes."""
    text = re.sub(r"^[ \t]*#[ \t]*define\b(?:.*\\\n)*.*", "", text, flags=re.M)
    for piece, name in re.findall(r"(.*?)\bWIMM_API\b[^;{]*?\b(wimm_\w+)\s*\([^;]*;", text, re.S):
        blocks = re.findall(r"/\*\*(.*?)\*/", piece, re.S)
        if not blocks or not re.search(rf"\b{TITLES.pattern}\b", blocks[-1]):
            raise Malformed(f"{header}.h: {name}() has no comment of its own in front of it")
        yield name, re.sub(r"\n[ \t]*\*", "\n", blocks[-1])


def rows(folder: pathlib.Path) -> dict[str, list[tuple[str, str, str, str]]]:
    """header -> [(function, first sentence, thread, blocks)]"""
    comments: dict[str, str] = {}
    order: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.h")):
        order[path.stem] = []
        for name, comment in functions(path.stem, path.read_text()):
            comments[name] = comment
            order[path.stem].append(name)

    def said(name: str, title: str, depth: int = 0) -> str:
        text = field(comments[name], title)
        other = re.match(r"as (wimm_\w+)\(\)", text)
        if other and other[1] in comments and depth < 3:
            return said(other[1], title, depth + 1)
        return text or "-"

    return {header: [(name, first_sentence(comments[name]), said(name, "Thread"),
                      said(name, "Blocks")) for name in names] for header, names in order.items()}


def render(folder: pathlib.Path = ROOT / "include" / "wimm") -> str:
    found = rows(folder)
    listed = [header for header in HEADERS if header in found]
    listed += [header for header in found if header not in listed]
    text = HEAD
    for header in listed:
        if not found[header]:
            continue
        text += f"## wimm/{header}.h\n\n| function | what it does | thread | blocks |\n"
        text += "|---|---|---|---|\n"
        for row in found[header]:
            cells = [re.sub(r"([|*])", r"\\\1", cell) for cell in row]
            text += f"| `{cells[0]}` | {' | '.join(cells[1:])} |\n"
        text += "\n"
    return text.rstrip("\n") + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    try:
        text = render()
    except Malformed as problem:
        print(f"gen_api: {problem}", file=sys.stderr)
        return 2
    if not args.check:
        PAGE.write_text(text)
        return 0
    if not PAGE.exists() or PAGE.read_text() != text:
        print(f"{PAGE.relative_to(ROOT)} is out of date; run scripts/gen_api.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
