#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generate python/wimm/_abi.py, and docs/api.md by gen_api.py, from the headers in include/wimm.

The headers are written in a small, regular part of C: constants, enums, plain structs, opaque
structs, function types and functions, no inline code. This reads exactly that part and refuses
anything else with the file and the text, so that a construct it does not know is noticed here and
not as a wrong layout at run time. A test also compares every size, offset and value with what the
C compiler says.

    scripts/gen_bindings.py            write both
    scripts/gen_bindings.py --check    exit with 1 if it would change
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import gen_api

ROOT = Path(__file__).resolve().parent.parent
HEADERS = ROOT / "include" / "wimm"
OUTPUT = ROOT / "python" / "wimm" / "_abi.py"

SCALARS = {
    "char": "c_char", "int": "c_int", "unsigned": "c_uint", "float": "c_float",
    "double": "c_double", "size_t": "c_size_t", "bool": "c_bool",
    **{f"{sign}int{bits}_t": f"c_{sign}int{bits}"
       for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
# Conditions of the preprocessor that the headers use, as a C compiler on Linux sees them.
CONDITIONS = {"ifdef __cplusplus": False, "if defined(__GNUC__)": True}


class Unknown(Exception):
    """A construct outside the part of C that the headers are written in."""


@dataclass
class Header:
    """What one header declares, in order."""

    name: str
    includes: list[str] = field(default_factory=list)
    macros: dict[str, str] = field(default_factory=dict)
    declarations: list[str] = field(default_factory=list)


@dataclass
class Api:
    """Everything the headers declare, in dependency order."""

    constants: dict[str, int | str] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    scalars: dict[str, str] = field(default_factory=dict)
    structs: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    opaque: set[str] = field(default_factory=set)
    statuses: list[tuple[str, str, str]] = field(default_factory=list)
    callbacks: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    functions: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    order: list[tuple[str, str]] = field(default_factory=list)


def read_header(path: Path) -> Header:
    """Split a header into includes, macros and declarations."""
    header = Header(path.name)
    text = re.sub(r"/\*.*?\*/", " ", path.read_text(), flags=re.DOTALL)
    text = text.replace("\\\n", " ")
    code: list[str] = []
    active = [True]
    for line in text.splitlines():
        if not line.lstrip().startswith("#"):
            if active[-1]:
                code.append(line)
            continue
        directive = " ".join(line.strip().lstrip("#").split())
        if directive.startswith("ifndef WIMM_") and directive.endswith("_H"):
            active.append(active[-1])
        elif directive.startswith("if"):
            if directive not in CONDITIONS:
                raise Unknown(f"{path.name}: #{directive}")
            active.append(active[-1] and CONDITIONS[directive])
        elif directive == "else":
            active[-1] = active[-2] and not active[-1]
        elif directive == "endif":
            active.pop()
        elif active[-1]:
            read_directive(header, directive)
    split_declarations(header, "\n".join(code))
    return header


def read_directive(header: Header, directive: str) -> None:
    include = re.fullmatch(r"include <(?:wimm/)?(\S+)>", directive)
    define = re.fullmatch(r"define (\w+)(\([^)]*\))?\s*(.*)", directive)
    if include:
        header.includes.append(include[1])
    elif define:
        header.macros[define[1] + (define[2] or "")] = define[3]
    elif not directive.startswith("undef "):
        raise Unknown(f"{header.name}: #{directive}")


def split_declarations(header: Header, code: str) -> None:
    depth, start = 0, 0
    for at, char in enumerate(code):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == ";" and depth == 0:
            words = code[start:at].replace("WIMM_API", " ").replace("WIMM_MUST_CHECK", " ")
            header.declarations.append(" ".join(words.split()))
            start = at + 1
    rest = code[start:].strip()
    if rest:
        raise Unknown(f"{header.name}: {rest[:60]!r} at the end")


def in_order(headers: dict[str, Header]) -> list[Header]:
    """Headers so that each comes after those it includes."""
    done: dict[str, Header] = {}

    def visit(name: str) -> None:
        if name in done or name not in headers:
            return
        for other in headers[name].includes:
            visit(other)
        done[name] = headers[name]

    for name in sorted(headers):
        visit(name)
    return list(done.values())


def read_constants(api: Api, header: Header) -> None:
    for name, body in header.macros.items():
        number = re.fullmatch(r"\(?(0[xX][0-9a-fA-F]+|\d+)[uUlL]*\)?", body)
        string = re.fullmatch(r'"([^"\\]*)"', body)
        if number:
            api.constants[name] = int(number[1], 0)
        elif string:
            api.constants[name] = string[1]
        elif not (name.endswith(("_H", "_INIT", "_MAP(X)", "_NUMBER")) or not body
                  or name in ("WIMM_API", "WIMM_MUST_CHECK") or name.startswith("X(")):
            raise Unknown(f"{header.name}: #define {name} {body}")


def read_enum(api: Api, header: Header, name: str, body: str) -> None:
    rows = re.fullmatch(r"\s*(\w+)\(X\)\s*", body)
    if rows:
        text = header.macros[f"{rows[1]}(X)"]
        table = re.findall(r'\bX\((\w+),\s*(-?\w+),\s*(\w+),\s*"([^"\\]*)"\)', text)
        if len(table) != len(re.findall(r"\bX\(", text)):
            raise Unknown(f"{header.name}: a row of {rows[1]}")
        body = ",".join(f"WIMM_{row[0]} = {row[1]}" for row in table)
        api.statuses = [(row[0], row[2], row[3]) for row in table]
    members: dict[str, int] = {}
    following = 0
    for item in filter(None, (part.strip() for part in body.split(","))):
        match = re.fullmatch(r"(\w+)(?:\s*=\s*(-?\w+?)[uU]?)?", item)
        if not match:
            raise Unknown(f"{header.name}: {item!r} in enum {name}")
        following = int(match[2], 0) if match[2] else following
        members[match[1]] = following
        following += 1
    api.enums[name] = members
    api.order.append(("enum", name))


def ctype(api: Api, text: str) -> tuple[str, str]:
    """The ctypes expression and the name of one field or parameter ("" if it has none)."""
    match = re.fullmatch(
        r"(?:const )?(struct )?(\w+)((?:\s*(?:\*|const))*)\s*(\w*)\s*(?:\[(\w+)\])?", text.strip())
    if not match:
        raise Unknown(f"type of {text!r}")
    is_struct, base, stars, name, length = match.groups()
    pointers = stars.count("*")
    expression = base_type(api, bool(is_struct), base, pointers, text)
    if length:
        count = int(length) if length.isdigit() else api.constants[length]
        expression = f"{expression} * {count}"
    return expression, name


def base_type(api: Api, is_struct: bool, base: str, pointers: int, text: str) -> str:
    if (is_struct and base in api.opaque) or base == "void":
        expression, pointers = "c_void_p", pointers - 1
        if pointers < 0:
            raise Unknown(f"{text!r}: a value without a size")
    elif base == "char" and pointers == 1:
        return "c_char_p" if "const" in text else "POINTER(c_char)"
    elif is_struct and base in api.structs:
        expression = base
    elif base in SCALARS:
        expression = SCALARS[base]
    elif base in api.enums:
        expression = "c_int"
    elif base in api.scalars:
        expression = api.scalars[base]
    elif base in api.callbacks:
        expression = base
    else:
        raise Unknown(f"type {base} of {text!r}")
    for _ in range(pointers):
        expression = f"POINTER({expression})"
    return expression


def parameters(api: Api, text: str) -> list[str]:
    """The ctypes expressions of a parameter list; arrays are pointers there."""
    if text.strip() in ("", "void"):
        return []
    types = []
    for part in text.split(","):
        expression = ctype(api, part)[0]
        array = re.fullmatch(r"(.*) \* \d+", expression)
        types.append(f"POINTER({array[1]})" if array else expression)
    return types


def result(api: Api, text: str) -> str:
    return "None" if text.strip() == "void" else ctype(api, text)[0]


def read_declaration(api: Api, header: Header, text: str) -> None:
    if match := re.fullmatch(r"struct (\w+)", text):
        api.opaque.add(match[1])
    elif match := re.fullmatch(r"struct (\w+) \{(.*)\}", text):
        fields = [ctype(api, part) for part in match[2].split(";") if part.strip()]
        api.structs[match[1]] = [(name, expression) for expression, name in fields]
        api.opaque.discard(match[1])
        api.order.append(("struct", match[1]))
    elif match := re.fullmatch(r"typedef enum(?: \w+)? \{(.*)\} (\w+)", text):
        read_enum(api, header, match[2], match[1])
    elif match := re.fullmatch(r"typedef (.+?)\(\s*\*\s*(\w+)\s*\)\s*\((.*)\)", text):
        api.callbacks[match[2]] = (result(api, match[1]), parameters(api, match[3]))
        api.order.append(("callback", match[2]))
    elif match := re.fullmatch(r"typedef (\w+) (\w+)", text):
        api.scalars[match[2]] = SCALARS[match[1]]
    elif match := re.fullmatch(r"([\w\s*]+?)\b(\w+)\s*\((.*)\)", text):
        api.functions[match[2]] = (result(api, match[1]), parameters(api, match[3]))
    else:
        raise Unknown(f"{header.name}: {text!r}")


def read_api(folder: Path = HEADERS) -> Api:
    """Read all headers of a folder."""
    api = Api()
    for header in in_order({path.name: read_header(path) for path in folder.glob("*.h")}):
        read_constants(api, header)
        for text in header.declarations:
            # extern "C" { and its closing brace are behind __cplusplus and never seen here.
            read_declaration(api, header, text)
    return api


def class_name(c_name: str) -> str:
    return "".join(word.capitalize() for word in c_name.split("_")[1:])


def member_names(members: dict[str, int]) -> dict[str, int]:
    """Members without the prefix they share, which the class name says already."""
    shared = os.path.commonprefix(list(members)).rsplit("_", 1)[0] + "_"
    return {name[len(shared):]: value for name, value in members.items()}


def wrapped(head: str, items: list[str], tail: str, indent: str = "") -> str:
    """One line where it fits into 100 columns, else the items on their own, else one a line."""
    line = f"{indent}{head}{', '.join(items)}{tail}"
    if len(line) <= 100:
        return line
    inner = f"{indent}    {', '.join(items)},"
    if len(inner) <= 100:
        return f"{indent}{head}\n{inner}\n{indent}{tail}"
    inner = "".join(f"{indent}    {item},\n" for item in items)
    return f"{indent}{head}\n{inner}{indent}{tail}"


def render_statuses(api: Api) -> list[str]:
    out = ["", "", "# How far each status reaches, and its line for a person.",
           "STATUS_SCOPES: dict[Status, Scope] = {"]
    out += [f"    Status.{name}: Scope.{scope}," for name, scope, _ in api.statuses]
    out += ["}", "STATUS_TEXTS: dict[Status, str] = {"]
    out += [f'    Status.{name}: "{text}",' for name, _, text in api.statuses]
    return out + ["}"]


def render(api: Api) -> str:
    """The text of _abi.py."""
    out = ['# SPDX-License-Identifier: Apache-2.0',
           '"""Constants, layouts and prototypes of libwimm. Generated by scripts/gen_bindings.py',
           'from include/wimm/*.h: change those and run it again."""', '',
           'from __future__ import annotations', '',
           'from ctypes import (']
    body: list[str] = []
    for kind, name in api.order:
        if kind == "enum":
            body += ["", "", f"class {class_name(name)}(IntEnum):", f'    """enum {name}"""', ""]
            body += [f"    {key} = {value}"
                     for key, value in member_names(api.enums[name]).items()]
            if name == "wimm_status":
                body += render_statuses(api)
        elif kind == "struct":
            body += ["", "", f"class {name}(Structure):", f'    """struct {name}"""', "",
                     "    _fields_ = ["]
            body += [f'        ("{key}", {expression}),' for key, expression in api.structs[name]]
            body += ["    ]"]
        else:
            returns, takes = api.callbacks[name]
            body += ["", "", wrapped(f"{name} = CFUNCTYPE(", [returns, *takes], ")")]
    body += ["", "", "# name: (result, parameters)",
             "FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {"]
    for name, (returns, takes) in api.functions.items():
        body.append(wrapped(f'"{name}": ({returns}, [', takes, "]),", "    "))
    body += ["}", ""]
    constants = ["", ""] + [f"{key} = {value!r}".replace("'", '"')
                            for key, value in api.constants.items()]
    text = "\n".join(constants + body)
    names = sorted(set(re.findall(r"\b(?:c_\w+|CFUNCTYPE|POINTER|Structure)\b", text)))
    out += [f"    {name}," for name in names] + [")", "from enum import IntEnum",
                                                 "from typing import Any"]
    return "\n".join(out) + text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true",
                        help="compare only; exit with 1 if different")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    args = parser.parse_args()
    try:
        texts = {args.output: render(read_api())}
        if args.output == OUTPUT:
            texts[gen_api.PAGE] = gen_api.render()
    except (Unknown, gen_api.Malformed) as unknown:
        print(f"gen_bindings: not understood: {unknown}", file=sys.stderr)
        return 2
    if not args.check:
        for path, text in texts.items():
            path.write_text(text)
        return 0
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path} is out of date: run scripts/gen_bindings.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
