# SPDX-License-Identifier: Apache-2.0
"""The binding and the headers say the same: the text is regenerated, the layouts are compiled."""
import ctypes
import subprocess
import sys
from enum import IntEnum

import pytest
from conftest import LIBRARY, ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import gen_bindings  # noqa: E402
from wimm import _abi  # noqa: E402

API = gen_bindings.read_api()


def test_abi_committed_text_is_what_the_headers_give():
    """Goal: a changed header without a regenerated binding fails here."""
    assert gen_bindings.OUTPUT.read_text() == gen_bindings.render(API), \
        "run scripts/gen_bindings.py"


def compiled(tmp_path, lines):
    """What a C program prints that includes every header."""
    includes = "".join(f"#include <wimm/{path.name}>\n"
                       for path in sorted((ROOT / "include" / "wimm").glob("*.h")))
    source = tmp_path / "abi.c"
    source.write_text(f"#include <stddef.h>\n#include <stdio.h>\n{includes}"
                      f"int main(void) {{\n{''.join(lines)}return 0;\n}}\n")
    program = tmp_path / "abi"
    subprocess.run(["cc", "-std=c11", f"-I{ROOT / 'include'}", str(source), "-o", str(program)],
                   check=True)
    text = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return dict(line.split(" ", 1) for line in text.splitlines())


def test_abi_layouts_are_those_of_the_c_compiler(tmp_path):
    """Goal: each size and offset is the compiler's."""
    lines, ours = [], {}
    for name, fields in API.structs.items():
        struct = getattr(_abi, name)
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));\n')
        ours[name] = str(ctypes.sizeof(struct))
        for field, _ in fields:
            key = f"{name}.{field}"
            lines.append(f'printf("{key} %zu:%zu\\n", offsetof(struct {name}, {field}), '
                         f'sizeof(((struct {name} *)0)->{field}));\n')
            place = getattr(struct, field)
            ours[key] = f"{place.offset}:{place.size}"
    assert len(ours) > 50
    assert compiled(tmp_path, lines) == ours


def test_abi_values_are_those_of_the_c_compiler(tmp_path):
    """Goal: each enum value and constant is the compiler's."""
    lines, ours = [], {}
    for name, members in API.enums.items():
        enum = getattr(_abi, gen_bindings.class_name(name))
        assert issubclass(enum, IntEnum) and len(enum) == len(members)
        for (c_name, _), member in zip(members.items(), enum):
            lines.append(f'printf("{c_name} %lld\\n", (long long){c_name});\n')
            ours[c_name] = str(int(member))
            assert c_name.endswith(member.name)
    for name, value in API.constants.items():
        kind, cast = ("%s", "") if isinstance(value, str) else ("%llu", "(unsigned long long)")
        lines.append(f'printf("{name} {kind}\\n", {cast}{name});\n')
        ours[name] = str(getattr(_abi, name))
    assert compiled(tmp_path, lines) == ours


def test_abi_every_exported_function_has_a_prototype():
    """Goal: nothing in the library is called with guessed types."""
    text = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)],
                          check=True, capture_output=True, text=True).stdout
    exported = {line.split()[-1].split("@")[0] for line in text.splitlines() if " T " in line}
    assert exported and exported <= set(_abi.FUNCTIONS)
    assert set(_abi.FUNCTIONS) <= exported, "declared in a header and not in the library"


def test_abi_stats_of_the_package_are_the_struct_s():
    """Goal: no counter is left out."""
    import wimm

    assert wimm.Stats._fields == tuple(name for name, _ in API.structs["wimm_engine_stats"]
                                       if name != "size")


@pytest.mark.parametrize("text, problem", [
    ("int wimm_x(long value);", "type long"),
    ("#define WIMM_X (1 + 2)", "#define WIMM_X"),
    ("#if WIMM_Y\n#endif", "#if WIMM_Y"),
    ("struct wimm_x { int a : 3; };", "type of"),
    ("union wimm_x { int a; };", "union"),
    ("struct wimm_x;\nvoid wimm_y(struct wimm_x value);", "without a size"),
    ('#define WIMM_M_MAP(X) X(A, 1, NONE, "a" "b")\ntypedef enum { WIMM_M_MAP(X) } wimm_z;',
     "a row of WIMM_M_MAP"),
])
def test_generator_unknown_construct_is_refused(tmp_path, text, problem):
    """Goal: what the generator does not know is never skipped in silence."""
    (tmp_path / "x.h").write_text(text + "\n")
    with pytest.raises(gen_bindings.Unknown, match=problem.replace("(", r"\(")):
        gen_bindings.read_api(tmp_path)
