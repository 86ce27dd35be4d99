# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the CUDA libraries that torch is linked against and does not call on a CPU.

Each has the functions that torch's own libraries want of it, with their versions; whoever calls one
is aborted. Needs cc, nm and readelf.

usage: stubs.py SITE_PACKAGES
"""
import collections
import re
import subprocess
import sys
import tempfile
from pathlib import Path

_CUDA = ("cu", "nv", "nccl")
_DRIVER = "libcuda.so.1"  # loaded at run time only


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Wanted:
    """What a set of libraries wants of others."""

    def __init__(self, libraries):
        self.files = set()
        self.file_of_version = {}
        self.symbols, own = set(), set()
        for library in libraries:
            self.files |= set(re.findall(r"NEEDED.*\[(lib(?:cu|nv|nccl)[^\]]*)\]",
                                         output("readelf", "-d", library)))
            self._read_versions(output("readelf", "-W", "-V", library))
            for line in output("nm", "-D", library).splitlines():
                kind, name = line.split()[-2:]
                (self.symbols if kind in "Uvw" else own).add(name)
        names = {name.split("@")[0] for name in own}
        self.symbols = {s for s in self.symbols
                        if s.startswith(_CUDA) and s.split("@")[0] not in names}

    def _read_versions(self, text):
        file = None
        for line in text.splitlines():
            if found := re.search(r"File: (\S+)", line):
                file = found[1]
            elif (found := re.search(r"Name: (\S+)\s+Flags", line)) and file:
                self.file_of_version[found[1]] = file

    def by_file(self, present):
        """{file: {version: [symbols]}} of the files that are not there."""
        missing = sorted(self.files - present - {_DRIVER})
        table = {file: collections.defaultdict(list) for file in missing}
        for symbol in sorted(self.symbols):
            name, _, version = symbol.partition("@")
            version = version.lstrip("@")
            file = self.file_of_version.get(version) if version else (missing or [None])[0]
            if file in table:
                table[file][version].append(name)
        return table


def build(path, versions):
    script = "".join(f"{version} {{ global: {' '.join(n + ';' for n in names)} }};\n"
                     for version, names in versions.items() if version)
    names = [name for group in versions.values() for name in group]
    source = "void abort(void);\n" + "".join(f"void {n}(void) {{ abort(); }}\n" for n in names)
    with tempfile.NamedTemporaryFile("w", suffix=".map") as exported:
        exported.write(script)
        exported.flush()
        subprocess.run(["cc", "-w", "-shared", "-fPIC", "-nostdlib", "-fno-builtin", "-x", "c",
                        f"-Wl,-soname,{path.name}",
                        *([f"-Wl,--version-script={exported.name}"] if script else []),
                        "-o", path, "-"], input=source, text=True, check=True)
    return len(names)


def main():
    packages = Path(sys.argv[1])
    folder = packages / "torch" / "lib"
    libraries = [*folder.glob("libtorch*.so"), *folder.glob("libc10*.so")]
    present = {path.name for path in packages.glob("nvidia/**/*.so*")}
    table = Wanted(libraries).by_file(present)
    total = sum(build(folder / name, versions) for name, versions in table.items())
    print(f"{total} functions in {len(table)} stubs")


if __name__ == "__main__":
    main()
