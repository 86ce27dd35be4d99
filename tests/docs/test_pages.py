# SPDX-License-Identifier: Apache-2.0
"""What pages say of the tree is so: folders, files, tests, decisions."""

import re

import registered

ROOT = registered.ROOT


def architecture(title):
    """The text of one section."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.S | re.M)[1]


def test_every_folder_of_tests_is_in_their_readme():
    text = (ROOT / "tests" / "README.md").read_text()
    folders = {path.name for path in (ROOT / "tests").iterdir()
               if path.is_dir() and not path.name.startswith(("_", "."))}
    assert len(folders) > 10
    assert not [name for name in sorted(folders) if f"`{name}`" not in text]


def test_readmes_of_src_name_files_and_folders_that_are_there():
    for page in (ROOT / "src").rglob("README.md"):
        text = page.read_text()
        for name in re.findall(r"`([a-z_0-9]+\.[ch])`", text):
            assert any(page.parent.rglob(name)), f"{page}: {name}"
        folders = {path.name for path in (ROOT / "src").iterdir() if path.is_dir()}
        for sentence in re.findall(r"\bIncludes ([a-z,\s]+?)[;.]", text):
            named = set(re.findall(r"\w+", sentence)) - {"and", "only"}
            assert named <= folders, f"{page}: {named - folders}"


def test_every_decision_is_linked_from_the_architecture():
    linked = re.findall(r"\(decisions/([\w.-]+)\)", architecture("Decisions"))
    assert linked == sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [name.split("-")[0] for name in linked]
    assert len(set(numbers)) == len(numbers), "two decisions have one number"


def test_every_invariant_names_what_holds_it():
    """Goal: tests and mutants that an invariant names exist, and each names one, or the check of
    another kind that it rests on."""
    mutants = {path.stem for path in (ROOT / "tests" / "mutants").glob("*.patch")}
    settings = set(re.findall(r"^\| (\w+) \|", (ROOT / "docs" / "settings.md").read_text(), re.M))
    rows = re.split(r"^\d+\. ", architecture("Invariants"), flags=re.M)[1:]
    assert len(rows) >= 9
    for row in rows:
        names = set(re.findall(r"`(\w+_\w+_\w+)`", row)) - settings
        for name in names - mutants:
            registered.must_be_run(name)
        assert names or "TSan" in row or "tests/fuzz" in row, row
