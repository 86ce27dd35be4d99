# SPDX-License-Identifier: Apache-2.0
"""Processes that use the library end well, with vendors' libraries installed (case 212)."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("WIMM_BUILD", "build")
LIBRARY = BUILD / "src" / "libwimm.so"
VENDORS = ["libibverbs", "libfabric", "librdmacm", "libcuda"]
USE_C = r"""
#include <stdio.h>
#include <string.h>
#include <wimm/transfer.h>

int main(int argc, char **argv)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct wimm_engine *engine = NULL;
	static char region[4096];
	struct wimm_mr *mr = NULL;
	char line[4096];
	FILE *maps;

	if (argc != 3)
		return 2;
	opts.provider = argv[1];
	opts.nics = strcmp(argv[1], "tcp") == 0 ? "127.0.0.1:0" : "any";
	if (wimm_engine_open(&opts, &engine) != WIMM_OK ||
	    wimm_reg_mr(engine, region, sizeof(region), NULL, &mr) != WIMM_OK)
		return 3;
	maps = fopen("/proc/self/maps", "r");
	while (maps != NULL && fgets(line, sizeof(line), maps) != NULL)
		if (strstr(line, ".so") != NULL)
			fputs(strrchr(line, '/') + 1, stdout);
	if (maps != NULL)
		fclose(maps);
	if (strcmp(argv[2], "close") == 0 && wimm_engine_close(&engine) != WIMM_OK)
		return 4;
	return 0;
}
"""
USE_PYTHON = r"""
import sys
sys.path.insert(0, sys.argv[1])
import wimm
wimm.use_library(sys.argv[4])
nics = "127.0.0.1:0" if sys.argv[2] == "tcp" else "any"
engine = wimm.Engine(provider=sys.argv[2], nics=nics)
if sys.argv[3] == "close":
    engine.close()
print("".join(line.rsplit("/", 1)[-1] for line in open("/proc/self/maps") if ".so" in line))
"""


@pytest.fixture(autouse=True)
def vendors_are_installed():
    """Where they are not, that they are left alone shows nothing."""
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    for name in ["libibverbs.so", "libfabric.so"]:
        if name not in known:
            pytest.skip(f"{name} is not installed")


def check(done):
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr}"
    loaded = set(done.stdout.split())
    assert not [name for name in loaded for vendor in VENDORS if name.startswith(vendor)]
    assert len([name for name in loaded if "wimm" in name]) == 1


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exit")
    (folder / "use.c").write_text(USE_C)
    subprocess.run(["gcc", "-std=c11", "-Wall", "-Werror", "-I", str(ROOT / "include"),
                    str(folder / "use.c"), "-o", str(folder / "use"), str(LIBRARY),
                    f"-Wl,-rpath,{LIBRARY.parent}"], check=True)
    return folder / "use"


@pytest.mark.parametrize("provider", ["tcp", "host", "sim"])
@pytest.mark.parametrize("end", ["close", "exit"])
def test_c_program_case_212_ends_with_status_0(program, provider, end):
    check(subprocess.run([program, provider, end], capture_output=True, text=True, timeout=20))


@pytest.mark.parametrize("provider", ["tcp", "host", "sim"])
@pytest.mark.parametrize("end", ["close", "exit"])
def test_python_program_case_212_ends_with_status_0(provider, end):
    check(subprocess.run([sys.executable, "-c", USE_PYTHON, str(ROOT / "python"), provider, end,
                          str(LIBRARY)], capture_output=True, text=True, timeout=30))
