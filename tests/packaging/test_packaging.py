# SPDX-License-Identifier: Apache-2.0
"""What a user of the installed package sees: headers, symbols, pkg-config, SONAME."""

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("WIMM_BUILD", "build")
HEADERS = sorted((ROOT / "include" / "wimm").glob("*.h"))
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]
LANGUAGES = {
    "c11-gcc": (["gcc", "-std=c11"], "c"),
    "c11-clang": (["clang", "-std=c11"], "c"),
    "cxx17-gcc": (["g++", "-std=c++17"], "cc"),
    "cxx17-clang": (["clang++", "-std=c++17"], "cc"),
}
PROGRAM = """
#include <stdio.h>
#include <wimm/status.h>

int main(void)
{
	if (wimm_version() != WIMM_VERSION_NUMBER)
		return 1;
	printf("%s %s\\n", WIMM_VERSION_STRING, wimm_status_name(WIMM_E_PEER_LOST));
	return 0;
}
"""


def output(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def exported():
    """Names the shared library defines for others, without their version."""
    lines = output("nm", "-D", "--defined-only", str(BUILD / "src" / "libwimm.so")).splitlines()
    names = [line.split()[-1].split("@")[0] for line in lines if " A " not in line]
    assert names
    return set(names)


def declared():
    names = set()
    for header in HEADERS:
        text = re.sub(r"/\*.*?\*/", " ", header.read_text(), flags=re.S)
        for call in re.findall(r"WIMM_API[^;{]*?\b(wimm_\w+)\s*\(", text):
            names.add(call)
    return names


def mapped():
    """Names the version script makes public; a pattern among them differs from every header."""
    text = (ROOT / "src" / "libwimm.map").read_text()
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    public = "".join(re.findall(r"global:(.*?)(?:local:|\})", text, flags=re.S))
    return {name.strip() for name in public.split(";") if name.strip()}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header.name)
def test_header_compiles_alone(tmp_path, header, language):
    compiler, suffix = LANGUAGES[language]
    source = tmp_path / f"alone.{suffix}"
    source.write_text(f"#include <wimm/{header.name}>\n")
    output(*compiler, *WARNINGS, f"-I{ROOT / 'include'}", "-fsyntax-only", str(source))


def test_every_header_is_installed():
    listed = set(re.findall(r"'wimm/([\w.]+)'", (ROOT / "include" / "meson.build").read_text()))
    assert listed == {header.name for header in HEADERS}


def test_exported_symbols_are_the_declared_ones():
    assert mapped() == declared(), "the map and the headers differ"
    assert exported() == declared(), "defined and declared differ"


def test_soname_and_dependencies_are_the_promised_ones():
    dynamic = output("readelf", "-d", str(BUILD / "src" / "libwimm.so"))
    assert re.findall(r"SONAME.*\[(.*)\]", dynamic) == ["libwimm.so.0"]
    needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
    vendors = re.compile(r"cuda|nvidia|ibverbs|fabric|rdmacm|gdrapi|efa")
    assert needed and not [name for name in needed if vendors.search(name)]


def test_versions_of_header_and_build_agree():
    header = (ROOT / "include" / "wimm" / "status.h").read_text()
    project = re.search(r"version: '([\d.]+)'", (ROOT / "meson.build").read_text())
    assert project[1] == re.search(r'WIMM_VERSION_STRING "([\d.]+)"', header)[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("install")
    output("meson", "install", "-C", str(BUILD), "--no-rebuild", "--destdir", str(folder))
    configs = list(folder.rglob("wimm.pc"))
    assert len(configs) == 1
    return folder, configs[0].parent


def pkg_config(installed, *args):
    folder, configs = installed
    env = {**os.environ, "PKG_CONFIG_PATH": str(configs), "PKG_CONFIG_SYSROOT_DIR": str(folder)}
    return output("pkg-config", *args, "wimm", env=env).split()


@pytest.mark.parametrize("language", LANGUAGES)
def test_outside_program_builds_and_runs(installed, tmp_path, language):
    compiler, suffix = LANGUAGES[language]
    source = tmp_path / f"outside.{suffix}"
    source.write_text(PROGRAM)
    flags = pkg_config(installed, "--cflags", "--libs")
    output(*compiler, *WARNINGS, str(source), "-o", str(tmp_path / "outside"), *flags)
    libraries = {str(path.parent) for path in installed[0].rglob("libwimm.so.0")}
    env = {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}
    assert output(str(tmp_path / "outside"), env=env) == "0.1.0 E_PEER_LOST\n"


def test_installation_has_nothing_internal(installed):
    folder, _ = installed
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    assert not [str(path) for path in files if "wimm_int" in path.name or "test" in path.name]
    assert pkg_config(installed, "--modversion") == ["0.1.0"]
