# SPDX-License-Identifier: Apache-2.0
"""`pip install .` gives a package that works where nothing else is installed."""

import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
import wimm
import wimm.rendezvous

assert wimm.__file__.startswith(sys.prefix), wimm.__file__
with wimm.Engine("tcp", "127.0.0.1:0") as a, wimm.Engine("tcp", "127.0.0.1:0") as b:
    target = bytearray(1 << 20)
    expected = b.expect(1, 1, deadline=20)
    source = a.register(bytes(range(256)) * 4096, local_only=True)
    a.write(source, a.open_remote(b.register(target).desc), imm=1, deadline=20).result(20)
    expected.result(20)
    assert target == bytes(range(256)) * 4096
with open("/proc/self/maps") as maps:
    mapped = {line.split()[-1] for line in maps if ".so" in line}
ours = [path for path in mapped if "libwimm" in path]
assert len(ours) == 1 and ours[0].startswith(sys.prefix), ours
vendors = ("cuda", "verbs", "fabric", "rdma", "gdrapi", "efa")
assert not [path for path in mapped if any(word in path for word in vendors)], mapped
assert not {"numpy", "torch"} & set(sys.modules)
print(wimm.__version__, wimm.info() != {})
"""


def output(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    # With the build backend of this environment: the check must not depend on an index.
    output(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
           "--wheel-dir", str(folder), str(ROOT))
    wheels = list(folder.glob("*.whl"))
    assert len(wheels) == 1
    return wheels[0]


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """A virtual environment with the wheel and nothing else in it; its interpreter."""
    folder = tmp_path_factory.mktemp("bare")
    output(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = folder / "bin" / "python"
    output(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python),
           "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    return python


def test_wheel_holds_the_package_and_nothing_else(wheel):
    """Goal: every module and one library are in it; no header, no tool, no second library."""
    names = zipfile.ZipFile(wheel).namelist()
    inside = {name for name in names if ".dist-info/" not in name}
    files = {f"wimm/{path.relative_to(ROOT / 'python' / 'wimm')}"
             for path in (ROOT / "python" / "wimm").rglob("*")
             if path.is_file() and path.suffix in (".py", ".typed")}
    assert inside == files | {"wimm/libwimm.so"}


def test_wheel_works_in_a_bare_environment(bare, tmp_path):
    """Goal: installed where nothing else is, it imports and moves bytes with its own library."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    text = output(str(bare), "-W", "error", "-c", PROGRAM, cwd=tmp_path, env=environ)
    assert text == "0.1.0 True\n"


def test_wheel_is_typed(bare):
    """Goal: type checkers look into it."""
    text = output(str(bare), "-c", "import wimm, pathlib; "
                  "print((pathlib.Path(wimm.__file__).parent / 'py.typed').exists())")
    assert text == "True\n"
