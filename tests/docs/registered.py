# SPDX-License-Identifier: Apache-2.0
"""Which tests of ours exist and are run."""

import functools
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@functools.cache
def sources():
    return [path.read_text() for path in sorted((ROOT / "tests").rglob("*.c"))]


def must_be_run(name):
    """Asserts that a test in C of this name exists and stands in a list of tests."""
    assert re.fullmatch(r"[a-z0-9_]+", name), f"{name!r} is no name of a test"
    found = [text for text in sources() if f"static void {name}(void **state)" in text]
    assert found, f"{name} is no test"
    registered = rf"(?:CASE|CASE_ONLY|cmocka_unit_test)\(\s*{name}\b"
    assert any(re.search(registered, text) for text in found), f"{name} is not run"
