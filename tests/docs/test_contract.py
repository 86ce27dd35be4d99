# SPDX-License-Identifier: Apache-2.0
"""Each point of docs/CONTRACT.md names tests that exist."""

import re

import registered


def page():
    return (registered.ROOT / "docs" / "CONTRACT.md").read_text()


def table():
    """Point -> names of its tests."""
    return {point: [name.strip() for name in names.split(",")]
            for point, names in re.findall(r"^\| (C\d+) \| (.+) \|$", page(), re.M)}


def test_each_point_has_a_row():
    points = re.findall(r"^- \*\*(C\d+) ", page(), re.M)
    assert points == [f"C{i}" for i in range(1, 13)]
    assert list(table()) == points


def test_each_row_names_tests_that_are_run():
    for point, names in table().items():
        assert len(names) >= 2, f"{point}: one test alone"
        for name in names:
            registered.must_be_run(name)
