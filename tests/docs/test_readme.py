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


def test_readme_c_example_is_of_a_program_that_moves_bytes(tmp_path):
    """Goal: the lines stand in demo/hello.c as they are, and it works, without warnings."""
    source = ROOT / "demo" / "hello.c"
    text = "\n".join(line[1:] if line.startswith("\t") else line
                     for line in source.read_text().splitlines())
    assert block("c") in text
    build = ROOT / "build" / "src"
    program = tmp_path / "example"
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "include",
                    source, "-L", build, "-lwimm", f"-Wl,-rpath,{build}", "-o", program],
                   check=True)
    out = subprocess.run([program], check=True, timeout=30, capture_output=True, text=True)
    assert out.stdout == "hello\n"


LENGTH = """
import wimm
with wimm.Engine("tcp", "127.0.0.1:0") as engine:
    print(len(engine.register(bytearray(4096)).desc))
"""


def test_readme_tells_the_length_of_a_descriptor():
    """Goal: the figure is that of the example's engines."""
    told = re.findall(r"the (\d+) bytes of `desc`", (ROOT / "README.md").read_text())
    assert told == [python(LENGTH).strip()]


def python(code):
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=30,
                          capture_output=True, text=True,
                          env={"PYTHONPATH": str(ROOT / "python"), "PATH": "/usr/bin:/bin"})
    return done.stdout


def test_readme_python_example_runs_and_moves_bytes():
    """Goal: the Python example works as printed."""
    assert python(block("python")) == "hello\n"
