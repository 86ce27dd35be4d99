# SPDX-License-Identifier: Apache-2.0
"""Python tests import the tree they lie in, with the one BLAS thread that bit comparisons need."""
import faulthandler
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / os.environ.get("WIMM_BUILD", "build") / "src" / "libwimm.so"

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read once, when the first test imports numpy
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "python"))


def pytest_configure(config):
    # Each wait of a test has a deadline of its own; this one says where it hangs if that fails.
    faulthandler.dump_traceback_later(600, exit=True)
    if "WIMM_BUILD" in os.environ:
        import wimm

        wimm.use_library(LIBRARY)


@pytest.fixture(params=["tcp", "sim"])
def provider(request):
    return request.param


def open_engine(provider, **options):
    """An engine of this process; over tcp it is reachable on the loopback interface only."""
    import wimm

    nics = "127.0.0.1:0" if provider == "tcp" else None
    return wimm.Engine(provider=provider, nics=nics, **options)


class Pair:
    """Engine a writes from `src` (a numpy array) to the region `dst` of engine b."""

    def __init__(self, provider, length=1 << 16):
        import numpy as np

        self.a, self.b = open_engine(provider), open_engine(provider)
        self.src = np.arange(length, dtype=np.uint8)
        self.dst = np.zeros(length, dtype=np.uint8)
        self.src_region = self.a.register(self.src)
        self.dst_region = self.b.register(self.dst)
        self.remote = self.a.open_remote(self.dst_region.desc)

    def close(self):
        self.a.close()
        self.b.close()


@pytest.fixture
def pair(provider):
    made = Pair(provider)
    yield made
    made.close()


@pytest.fixture
def run_python():
    """Run a program in a fresh interpreter that finds the package as this one does."""

    def run(code, *args, status=0, environ=os.environ, timeout=60):
        code = f"import wimm; wimm.use_library({str(LIBRARY)!r})\n{code}"
        path = os.pathsep.join([str(ROOT / "python"), str(ROOT)])
        done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", code, *args],
                              capture_output=True, text=True, timeout=timeout,
                              env={**environ, "PYTHONPATH": path})
        assert done.returncode == status, f"status {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    return run
