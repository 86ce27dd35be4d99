#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check the rules of the tree that a compiler does not: layers, sizes, licence lines, tests, words.

Prints "path:line: rule: what is wrong" and ends with status 1 if anything is. A waiver is a line
"path rule reason" in scripts/tidy_waivers.txt; one that waives nothing is itself an error.
"""

import argparse
import ast
import dataclasses
import os
import pathlib
import re
import subprocess
import sys

# What each folder or file may include of ours, the longest match counts. "wimm" is include/wimm.
LAYERS = {
    "src/base": {"base", "wimm/status.h"},
    "src/plat": {"base", "plat", "wimm"},
    "src/queue": {"base", "plat", "queue", "wimm"},
    "src/mem": {"base", "plat", "mem", "wimm"},
    "src/prov": {"base", "plat", "queue", "mem", "prov", "wimm"},
    "src/core": {"base", "plat", "queue", "mem", "prov", "core", "wimm"},
    "src/kv": {"kv", "wimm"},
    "src/weights": {"weights", "wimm"},
    "src/moe": {"moe", "wimm"},
    "include/wimm": {"wimm"},
    "kernels": set(),
    "tools": {"lib", "tools", "wimm"},
    "demo": {"wimm"},
    "bench": {"wimm"},
    # These two measure a provider by itself, without the core.
    "bench/tcp_prov.c": {"base", "plat", "prov", "wimm"},
    "bench/cost": {"prov", "wimm"},
    "bench/cost/stub_verbs.c": {"fake", "prov", "wimm"},
    "bench/cost/cost_gpu.c": {"fake", "mem", "wimm"},
}
MODULES = {"base", "plat", "queue", "mem", "prov", "core", "kv", "weights", "moe", "wimm"}
# What Python files of a folder may import beside Python's own library and what lies around them.
IMPORTS = {
    "python/wimm": set(),
    "python/wimm/vllm": {"vllm", "torch", "wimm"},
    "python/wimm/sglang": {"sglang", "wimm"},
    "demo": {"demo", "numpy", "wimm"},
    "bench": set(),
}
# Headers of vendors, and the only folders that may see them.
VENDORS = [
    (re.compile(r"^infiniband/|^rdma/rdma_"),
     ["src/prov/verbs", "bench/floor", "tests/fake", "tests/unit/prov/verbs"]),
    (re.compile(r"^rdma/(?:fi|fabric)"), ["src/prov/fabric"]),
    (re.compile(r"^cuda|^nvml|^nv[A-Z]"), ["src/mem", "src/prov/host", "kernels", "tests/gpu"]),
    (re.compile(r"^gdrapi"), ["src/mem"]),
]
# Calls that have one home: (pattern, where it is forbidden, where it is at home, what to use).
HOMES = [
    (r"\b(?:secure_)?getenv\s*\(", ("src/", "tools/"), ["src/base/config.c", "tools/lib/ranks.c"],
     "a row of src/base/config_table.h"),
    (r"\b(?:malloc|calloc|realloc|free|strdup|posix_memalign|aligned_alloc)\s*\(", ("src/",),
     ["src/base/alloc.c", "src/kv/mem.c"], "base/alloc.h, or the mem.h of a folder that may not"),
    (r"\b(?:abort|exit|_exit|printf|fprintf|puts|perror)\s*\(", ("src/",), ["src/base/assert.c"],
     "a status, or base/log.h"),
    (r"\bpthread_create\s*\(", ("src/",), ["src/plat/thread.c"], "plat/thread.h"),
    (r"\bclock_gettime\s*\(", ("src/",), ["src/plat/clock.c"], "plat/clock.h"),
    (r"\batomic_(?:thread|signal)_fence\s*\(", ("src/", "tests/"), [],
     "the order on the load or store"),
    (r"\b(?:sleep|usleep|nanosleep|clock_nanosleep)\s*\(", ("src/", "tests/"), [],
     "a wait with a condition and a deadline"),
]
WORDS = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX)\b")  # in halves: this file is checked too
SPDX = "SPDX-License-Identifier: Apache-2.0"
CODE = {".c", ".h", ".cc", ".cpp", ".cu", ".py", ".pyi", ".sh"}
LICENSED = CODE | {".map", ".build", ".pml"}
STOP_LINES, WARN_LINES = 900, 600
HEADER_WARN, HEADER_STOP = {"public": 400, "internal": 200}, {"public": 600, "internal": 300}
FUNCTION_LINES, COLUMNS, README_LINES = 70, 100, 25
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')


@dataclasses.dataclass(frozen=True)
class Problem:
    path: str
    line: int
    rule: str
    text: str
    warning: bool = False

    def __str__(self):
        kind = "warning: " if self.warning else ""
        return f"{self.path}:{self.line}: {kind}{self.rule}: {self.text}"


def list_files(root):
    if (root / ".git").exists():
        out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root,
                             check=True, capture_output=True).stdout.decode()
        names = [name for name in out.split("\0") if name]
    else:
        names = []
        for folder, folders, files in os.walk(root):
            folders[:] = [f for f in folders if not f.startswith((".", "build")) and
                          f != "__pycache__"]
            names += [os.path.relpath(os.path.join(folder, f), root) for f in files]
    return sorted(name for name in names if (root / name).is_file())


def inside(path, folder):
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def strip_c(text):
    """The code with comments and strings blanked, every newline kept."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def check_include(path, number, name, quoted, files):
    for pattern, homes in VENDORS:
        if pattern.match(name) and not any(inside(path, home) for home in homes):
            yield Problem(path, number, "vendor", f"{name} belongs to {', '.join(homes)} only")
    layer = max((l for l in LAYERS if inside(path, l)), key=len, default=None)
    module = name.split("/")[0]
    if layer is None or (module not in MODULES and not quoted):
        return
    allowed = LAYERS[layer]
    if quoted and ("/" not in name or name.startswith("../")):
        # Beside the file itself or above it in its folder, or not ours at all.
        near = os.path.normpath(os.path.join(os.path.dirname(path), name))
        if near not in files or not inside(near, path.split("/")[0]):
            yield Problem(path, number, "layer", f"{name} is not beside this file; write its path")
        return
    if module not in allowed and name not in allowed:
        yield Problem(path, number, "layer", f"{layer} may not include {name}")
    own = re.match(r"src/prov/([^/]+)/", path)
    other = re.match(r"prov/([^/]+)/", name)
    if other and (own is None or own[1] != other[1]) and path != "src/prov/registry.c":
        yield Problem(path, number, "layer", f"provider folder of {name} is private to it")


def check_c_text(path, text, files):
    code = strip_c(text).splitlines()
    for number, line in enumerate(text.splitlines(), 1):
        if match := INCLUDE.match(line):
            yield from check_include(path, number, match[2], match[1] == '"', files)
    for pattern, where, homes, instead in HOMES:
        if not path.startswith(where) or path in homes:
            continue
        for number, line in enumerate(code, 1):
            if match := re.search(pattern, line):
                name = match[0].rstrip("( \t")
                yield Problem(path, number, "home", f"{name} has its home elsewhere: use {instead}")
    if path.startswith("include/wimm/"):
        for number, line in enumerate(code, 1):
            if re.search(r"\binline\b|\b_Atomic\b|<stdatomic", line):
                yield Problem(path, number, "public", "no inline functions or atomics here")
    if path.endswith(".c"):
        yield from check_c_functions(path, code)


def check_c_functions(path, code):
    start = None
    for number, line in enumerate(code, 1):
        if line.rstrip() == "{":
            start = number
        elif line.startswith("}") and start is not None:
            if number - start + 1 > FUNCTION_LINES:
                yield Problem(path, start, "function",
                              f"{number - start + 1} lines; {FUNCTION_LINES} at most")
            start = None


def check_py_imports(path, tree):
    layer = max((l for l in IMPORTS if inside(path, l)), key=len, default=None)
    if layer is None:
        return
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        for name in names:
            top = name.split(".")[0]
            if top not in IMPORTS[layer] and top not in sys.stdlib_module_names:
                yield Problem(path, node.lineno, "layer", f"{layer} may not import {name}")


def check_py_text(path, text):
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        yield Problem(path, error.lineno or 1, "syntax", str(error.msg))
        return
    yield from check_py_imports(path, tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield Problem(path, node.lineno, "function",
                              f"{lines} lines; {FUNCTION_LINES} at most")


def check_size(path, count):
    if path.endswith(".h"):
        kind = "public" if path.startswith("include/") else "internal"
        warn, stop = HEADER_WARN[kind], HEADER_STOP[kind]
    else:
        warn, stop = WARN_LINES, STOP_LINES
    if count > stop:
        yield Problem(path, count, "size", f"{count} lines; {stop} at most")
    elif count > warn:
        yield Problem(path, count, "size", f"{count} lines; aim below {warn}", True)


def check_test_goals(path, text):
    """Each cmocka case begins with a comment that says its goal."""
    cases = set(re.findall(r"cmocka_unit_test\w*\(\s*(\w+)", text))
    for match in re.finditer(r"^(?:static )?void (\w+)\(void \*\*\w+\)\n\{\n([^\n]*)", text, re.M):
        if match[1] in cases and not match[2].strip().startswith("/* Goal:"):
            yield Problem(path, text.count("\n", 0, match.start()) + 1, "goal",
                          f"{match[1]} does not begin with its /* Goal: ... */")


def check_file(root, path, files):
    suffix = pathlib.PurePath(path).suffix
    try:
        text = (root / path).read_text()
    except UnicodeDecodeError:
        return
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if WORDS.search(line):
            yield Problem(path, number, "word", "do it, or write down where it is decided")
        if suffix in CODE and len(line.expandtabs(8)) > COLUMNS:
            yield Problem(path, number, "columns",
                          f"{len(line.expandtabs(8))} columns; {COLUMNS} at most")
    script = bool(lines) and lines[0].startswith("#!")
    if suffix in LICENSED or path == "Makefile" or script:
        head = lines[1:2] if script else lines[:1]
        if lines and not any(SPDX in line for line in head):
            yield Problem(path, 1, "licence", f"the first line has no {SPDX}")
    if suffix in CODE:
        yield from check_size(path, len(lines))
    if suffix in {".c", ".h", ".cu", ".cc", ".cpp"}:
        yield from check_c_text(path, text, files)
    if suffix == ".py" or (script and "python" in lines[0]):
        yield from check_py_text(path, text)
    if path.startswith("tests/") and suffix == ".c":
        yield from check_test_goals(path, text)


def read_table(root, name, fields):
    """Lines of a list file as (number, fields); too few fields is an error of the caller's."""
    path = root / name
    if not path.exists():
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line.split(None, fields - 1)


def check_unit_tests(root, files):
    untested = {}
    for number, row in read_table(root, "tests/UNTESTED", 2):
        if len(row) < 2:
            yield Problem("tests/UNTESTED", number, "untested", "want 'path reason'")
        untested[row[0]] = number
    for path in sorted(files):
        if not (path.startswith("src/") and path.endswith(".c")):
            continue
        test = "tests/unit/" + path[len("src/"):-len(".c")] + "_test.c"
        if test not in files and path not in untested:
            yield Problem(path, 1, "untested", f"{test} is missing; write it or list this file in "
                                               "tests/UNTESTED with a reason")
        if test in files and path in untested:
            yield Problem("tests/UNTESTED", untested[path], "untested", f"{path} has a test now")
    for path, number in untested.items():
        if path not in files:
            yield Problem("tests/UNTESTED", number, "untested", f"{path} does not exist")


def check_readmes(root, files):
    folders = {os.path.dirname(path) for path in files
               if path.startswith("src/") and path.endswith(".c")}
    for folder in sorted(folders):
        readme = f"{folder}/README.md"
        if readme not in files:
            yield Problem(readme, 1, "readme", "missing: what it is for, what it may include, "
                                               "where to start reading")
        elif len((root / readme).read_text().splitlines()) > README_LINES:
            yield Problem(readme, 1, "readme", f"more than {README_LINES} lines")


def waive(root, problems):
    waivers = {}
    for number, row in read_table(root, "scripts/tidy_waivers.txt", 3):
        if len(row) < 3:
            yield Problem("scripts/tidy_waivers.txt", number, "waiver", "want 'path rule reason'")
            continue
        waivers[(row[0], row[1])] = number
    used = set()
    for problem in problems:
        if (problem.path, problem.rule) in waivers:
            used.add((problem.path, problem.rule))
        else:
            yield problem
    for key, number in waivers.items():
        if key not in used:
            yield Problem("scripts/tidy_waivers.txt", number, "waiver",
                          f"{key[0]} {key[1]} waives nothing any more; remove the line")


def check_tree(root):
    files = set(list_files(root))
    problems = []
    for path in sorted(files):
        problems += check_file(root, path, files)
    problems += check_unit_tests(root, files)
    problems += check_readmes(root, files)
    return list(waive(root, problems))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    args = parser.parse_args()
    problems = check_tree(args.root)
    for problem in problems:
        print(problem)
    errors = [problem for problem in problems if not problem.warning]
    if errors:
        print(f"{len(errors)} problems; a waiver is a line in scripts/tidy_waivers.txt")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
