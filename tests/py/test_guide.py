# SPDX-License-Identifier: Apache-2.0
"""What the documents show runs."""
import os
import re

import pytest
from conftest import ROOT

PAGES = ["docs/guide/python.md", "docs/guide/kv.md", "README.md"]


def examples():
    for page in PAGES:
        path = ROOT / page
        text = path.read_text() if path.exists() else ""
        for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S), 1):
            yield pytest.param(code, id=f"{page}-{number}")


@pytest.mark.parametrize("code", list(examples()))
def test_guide_example_runs(code, run_python):
    """Goal: each example is a whole program that ends with status 0 and without complaint."""
    clean = {key: value for key, value in os.environ.items() if "RANK" not in key}
    assert run_python(code, environ=clean).stderr == ""


def test_guide_names_every_public_name():
    """Goal: no part of the package is without a word in its guide."""
    import wimm

    text = (ROOT / "docs" / "guide" / "python.md").read_text()
    methods = {name for name in dir(wimm.Engine) if not name.startswith("_")}
    methods -= {"close", "closed", "progress_wait", "remove_peer"}  # as their names say
    assert not [name for name in sorted(methods) if name not in text]
