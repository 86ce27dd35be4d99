# SPDX-License-Identifier: Apache-2.0
"""Each row of docs/failure.md names a test that exists."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def rows():
    for line in (ROOT / "docs" / "failure.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 5 and cells[0] != "fault" and cells[0] != "---":
            yield cells


def test_page_has_rows():
    assert len(list(rows())) >= 25


def test_each_row_names_a_test_that_is_run():
    sources = [path.read_text() for path in (ROOT / "tests").rglob("*.c")]
    for cells in rows():
        name = cells[-1]
        assert re.fullmatch(r"[a-z0-9_]+", name), f"{cells[0]}: no test is named"
        found = [text for text in sources if f"static void {name}(void **state)" in text]
        assert found, f"{cells[0]}: {name} is no test"
        registered = rf"(?:CASE|CASE_ONLY|cmocka_unit_test)\(\s*{name}\b"
        assert any(re.search(registered, text) for text in found), f"{name} is not run"
