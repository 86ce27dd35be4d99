# SPDX-License-Identifier: Apache-2.0
"""Each rule of scripts/tidy.py finds its own offence, alone, and leaves a clean tree alone."""

import importlib.util
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPDX = "SPDX-License-Identifier: Apache-2.0"
C = f"/* {SPDX} */\n"
PY = f"# {SPDX}\n"
# In halves: the tree's own check reads this file too.
WORD = "TO" + "DO"


def load_tidy():
    spec = importlib.util.spec_from_file_location("tidy", ROOT / "scripts" / "tidy.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["tidy"] = module
    spec.loader.exec_module(module)
    return module


tidy = load_tidy()

CLEAN = {
    "src/base/a.c": C + '#include "base/a.h"\n#include <stdio.h>\n',
    "src/base/a.h": C + '#include "wimm/status.h"\n',
    "src/base/README.md": "# base\n",
    "src/core/worker.c": C + '#include "prov/prov.h"\n#include "queue/mpsc.h"\n'
                              '#include "worker.h"\n',
    "src/core/worker.h": C,
    "src/core/README.md": "# core\n",
    "src/prov/tcp/tcp.c": C + '#include "prov/tcp/tcp.h"\n#include "base/a.h"\n',
    "src/prov/tcp/README.md": "# tcp\n",
    "include/wimm/status.h": C + "#include <stdint.h>\n",
    "tests/unit/base/a_test.c": C + "static void x_in_y_does_z(void **state)\n{\n\t/* Goal: g. */\n"
                                    "}\ncmocka_unit_test(x_in_y_does_z)\n",
    "tests/unit/core/worker_test.c": C,
    "tests/unit/prov/tcp/tcp_test.c": C,
    "bench/idle.h": C + "#include <wimm/status.h>\n",
    "scripts/x.py": "#!/usr/bin/env python3\n" + PY,
}


def check(tmp_path, changes):
    for name, text in {**CLEAN, **changes}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            path.write_text(text)
    return tidy.check_tree(tmp_path)


def function_of(lines):
    return "int f(void)\n{\n" + "\tg();\n" * (lines - 2) + "}\n"


OFFENCES = [
    ("layer", "src/base/a.c", C + '#include "plat/clock.h"\n'),
    ("layer", "src/base/a.c", C + "#include <wimm/engine.h>\n"),
    ("layer", "src/prov/tcp/tcp.c", C + '#include "core/worker.h"\n'),
    ("layer", "src/prov/tcp/tcp.c", C + '#include "prov/sim/sim.h"\n'),
    ("layer", "src/core/worker.c", C + '#include "prov/tcp/tcp.h"\n'),
    ("layer", "src/core/worker.c", C + '#include "elsewhere.h"\n'),
    ("layer", "include/wimm/status.h", C + '#include "base/a.h"\n'),
    ("layer", "bench/idle.c", C + '#include "prov/prov.h"\n'),
    ("layer", "bench/cost/cost.c", C + '#include "base/a.h"\n'),
    ("layer", "bench/floor/f.c", C + '#include "../gone.h"\n'),
    ("layer", "bench/floor/f.c", C + '#include "../../src/base/a.h"\n'),
    ("layer", "kernels/copy.cu", C + '#include "mem/cuda.h"\n'),
    ("layer", "python/wimm/x.py", PY + "import numpy\n"),
    ("layer", "python/wimm/x.py", PY + "def f():\n    from torch.cuda import init\n"),
    ("layer", "demo/x.py", PY + "import torch\n"),
    ("layer", "bench/run", "#!/usr/bin/env python3\n" + PY + "import wimm\n"),
    ("vendor", "src/core/worker.c", C + "#include <infiniband/verbs.h>\n"),
    ("vendor", "src/prov/tcp/tcp.c", C + "#include <rdma/fabric.h>\n"),
    ("vendor", "include/wimm/status.h", C + "#include <cuda.h>\n"),
    ("home", "src/core/worker.c", C + 'static const char *x(void) { return getenv("A"); }\n'),
    ("home", "src/core/worker.c", C + "static void *x(void) { return malloc(1); }\n"),
    ("home", "src/core/worker.c", C + "static void x(void) { abort(); }\n"),
    ("home", "src/core/worker.c", C + "atomic_thread_fence(memory_order_seq_cst);\n"),
    ("home", "tests/unit/core/worker_test.c", C + "usleep(5);\n"),
    ("public", "include/wimm/status.h", C + "static inline int x(void);\n"),
    ("function", "src/core/worker.c", C + function_of(71)),
    ("function", "scripts/x.py", PY + "def f():\n" + "    g()\n" * 70),
    ("columns", "src/core/worker.c", C + "\t/* " + "x" * 87 + " */\n"),
    ("size", "src/core/worker.c", C + "\n" * 900),
    ("size", "src/core/worker.h", C + "\n" * 300),
    ("licence", "src/core/worker.c", "/* no licence */\n"),
    ("licence", "scripts/x.py", "#!/usr/bin/env python3\n\n" + PY),
    ("word", "src/core/README.md", f"{WORD}: later\n"),
    ("untested", "src/core/other.c", C),
    ("untested", "tests/UNTESTED", "src/base/a.c it is too simple\n"),
    ("untested", "tests/UNTESTED", "src/base/gone.c it was too simple\n"),
    ("readme", "src/core/README.md", "line\n" * 26),
    ("readme", "src/core/README.md", None),
    ("goal", "tests/unit/base/a_test.c", CLEAN["tests/unit/base/a_test.c"].replace("Goal", "It")),
    ("waiver", "scripts/tidy_waivers.txt", "src/core/worker.c size it is large\n"),
    ("waiver", "scripts/tidy_waivers.txt", "src/core/worker.c size\n"),
]


def test_clean_tree_has_no_problems(tmp_path):
    assert check(tmp_path, {}) == []


@pytest.mark.parametrize("rule,path,text", OFFENCES)
def test_each_offence_is_found_alone_and_where_it_is(tmp_path, rule, path, text):
    problems = check(tmp_path, {path: text})
    assert [(p.rule, p.path, p.warning) for p in problems] == [(rule, path, False)]


@pytest.mark.parametrize("path,text", [
    ("src/core/worker.c", C + function_of(70)),
    ("src/core/worker.c", C + "\t/* " + "x" * 86 + " */\n"),
    ("src/core/worker.c", C + "/* never getenv(x), malloc(1) or abort() here */\n"),
    ("src/core/worker.c", C + 'static const char x[] = "abort() // and /* so on";\n'),
    ("src/base/config.c", C + 'static const char *x(void) { return getenv("A"); }\n'),
    ("src/prov/registry.c", C + '#include "prov/tcp/tcp.h"\n'),
    ("bench/tcp_prov.c", C + '#include "prov/prov.h"\n#include "base/a.h"\n'),
    ("bench/floor/f.c", C + '#include "../../bench/idle.h"\n'),
    ("python/wimm/x.py", PY + "import ctypes\nfrom . import numpy\n"),
    ("python/wimm/vllm/x.py", PY + "import torch\nfrom wimm import kv\n"),
    ("demo/x.py", PY + "import numpy as np\nfrom demo import y\nimport wimm\n"),
    ("src/prov/verbs/v.c", C + "#include <infiniband/verbs.h>\n"),
])
def test_what_is_allowed_is_left_alone(tmp_path, path, text):
    extra = {"tests/UNTESTED": f"{path} not the point here\n"}
    if path in CLEAN:
        extra = {}
    if path.startswith("src/prov/"):
        extra[str(pathlib.PurePath(path).parent / "README.md")] = "# x\n"
    assert check(tmp_path, {path: text, **extra}) == []


def test_large_file_is_only_warned_of(tmp_path):
    problems = check(tmp_path, {"src/core/worker.c": C + "\n" * 700})
    assert [(p.rule, p.warning) for p in problems] == [("size", True)]


def test_waiver_silences_its_rule_in_its_file_only(tmp_path):
    problems = check(tmp_path, {
        "src/core/worker.c": C + function_of(71) + "\nvoid x(void) { abort(); }\n",
        "scripts/tidy_waivers.txt": "src/core/worker.c function one table of cases\n",
    })
    assert [p.rule for p in problems] == ["home"]


def test_program_ends_with_status_one_when_there_are_problems(tmp_path, capsys, monkeypatch):
    check(tmp_path, {"src/core/worker.c": "int x;\n"})
    monkeypatch.setattr(sys, "argv", ["tidy.py", str(tmp_path)])
    assert tidy.main() == 1
    assert "src/core/worker.c:1: licence:" in capsys.readouterr().out
    (tmp_path / "src/core/worker.c").write_text(C)
    assert tidy.main() == 0
