# SPDX-License-Identifier: Apache-2.0
"""SGLang's published files, without what they import: stand-ins take the place of its packages, so
that neither torch nor a GPU is needed. `tests/sglang/run` fetches the wheel."""
import os
import sys
import types
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / os.environ.get("WIMM_BUILD", "build") / "src" / "libwimm.so"
WHEELS = sorted((ROOT / ".cache/sglang").glob("sglang-0.5.23-*.whl"))
USED = ("sglang/srt/disaggregation/base/",
        "sglang/srt/distributed/device_communicators/mooncake_transfer_engine.py")

sys.path.insert(0, str(ROOT / "python"))


class _Setting:
    def __init__(self, value):
        self.value = value

    def get(self):
        return self.value


def module(name, path=None, **names):
    made = types.ModuleType(name)
    if path is not None:
        made.__path__ = [str(path)]
    for key, value in names.items():
        setattr(made, key, value)
    sys.modules[name] = made
    return made


@pytest.fixture(scope="session")
def sglang(tmp_path_factory):
    """The folder of its files; its packages can be imported afterwards."""
    if not WHEELS:
        pytest.skip("no wheel of sglang 0.5.23: tests/sglang/run fetches it")
    folder = tmp_path_factory.mktemp("sglang")
    with zipfile.ZipFile(WHEELS[-1]) as wheel:
        wheel.extractall(folder, [n for n in wheel.namelist() if n.startswith(USED)])
    root = folder / "sglang"
    for name, path in (("sglang", root), ("sglang.srt", root / "srt"),
                       ("sglang.srt.disaggregation", root / "srt/disaggregation"),
                       ("sglang.srt.distributed", root / "srt/distributed"),
                       ("sglang.srt.distributed.device_communicators",
                        root / "srt/distributed/device_communicators"),
                       ("sglang.srt.utils", root / "srt/utils")):
        module(name, path)
    module("sglang.srt.server_args", ServerArgs=object)
    module("sglang.srt.environ", envs=types.SimpleNamespace(
        ENABLE_ASCEND_TRANSFER_WITH_MOONCAKE=_Setting(False), MOONCAKE_PROTOCOL=_Setting("tcp"),
        SGLANG_DISAGGREGATION_ENGINE_INIT_TIMEOUT=_Setting(60)))
    module("sglang.srt.runtime_context", get_disagg=None, get_exec=None, get_memory=None)
    module("sglang.srt.utils.common", run_with_deadline=lambda call, timeout_s, what: call())
    module("sglang.srt.utils.network", get_free_port=None, get_local_ip_auto=None,
           NetworkAddress=lambda host, port: types.SimpleNamespace(
               to_host_port_str=lambda: f"{host}:{port}"))
    return root
