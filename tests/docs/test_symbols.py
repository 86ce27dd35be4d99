# SPDX-License-Identifier: Apache-2.0
"""No page names a function, a type or a field of the public API that is gone."""

import re

import registered

NAME = re.compile(r"\bwimm_[a-z0-9_]+\b")


def test_pages_name_nothing_that_the_headers_do_not_have():
    root = registered.ROOT
    known = {name for path in (root / "include" / "wimm").glob("*.h")
             for name in NAME.findall(path.read_text())}
    pages = [root / "README.md", root / "tools" / "wimm.1", *(root / "docs").rglob("*.md")]
    for folder in ("src", "tests", "tools", "demo", "bench"):
        pages += (root / folder).rglob("*.md")
    gone = {(str(page.relative_to(root)), name) for page in pages
            for name in NAME.findall(page.read_text()) if name not in known}
    assert len(pages) > 20 and not gone
