# SPDX-License-Identifier: Apache-2.0
"""Each row of docs/failure.md names a test that exists."""

import registered


def rows():
    for line in (registered.ROOT / "docs" / "failure.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 5 and cells[0] != "fault" and cells[0] != "---":
            yield cells


def test_page_has_rows():
    assert len(list(rows())) >= 25


def test_each_row_names_a_test_that_is_run():
    for cells in rows():
        registered.must_be_run(cells[-1])
