# SPDX-License-Identifier: Apache-2.0
"""The README's examples are compiled and run as they stand."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def block(language):
    text = (ROOT / "README.md").read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M)
    assert len(found) == 1, f"{len(found)} blocks of {language} in the README"
    return found[0]


def test_readme_c_example_compiles_and_moves_bytes(tmp_path):
    """Goal: the C example works as printed, without warnings."""
    source = tmp_path / "example.c"
    source.write_text(block("c"))
    build = ROOT / "build" / "src"
    program = tmp_path / "example"
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "include",
                    source, "-L", build, "-lwimm", f"-Wl,-rpath,{build}", "-o", program],
                   check=True)
    out = subprocess.run([program], check=True, timeout=30, capture_output=True, text=True)
    assert out.stdout == "hello\n"


def test_readme_python_example_runs_and_moves_bytes(tmp_path):
    """Goal: the Python example works as printed."""
    source = tmp_path / "example.py"
    source.write_text(block("python"))
    out = subprocess.run([sys.executable, source], check=True, timeout=30, capture_output=True,
                         text=True,
                         env={"PYTHONPATH": str(ROOT / "python"), "PATH": "/usr/bin:/bin"})
    assert out.stdout == "hello\n"
