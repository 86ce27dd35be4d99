# SPDX-License-Identifier: Apache-2.0
"""The demo: a language model whose K/V pages travel from one process to another.

The two sides compare their K/V bytes and logits bit for bit, and that needs the same number of
BLAS threads on both: a matrix product split over two threads rounds differently. OpenBLAS reads the
number once, when numpy is imported, so it is set here, in the package that every entry point of the
demo imports first, before any of its modules can import numpy.
"""
import os
import sys

_VARIABLE = "OPENBLAS_NUM_THREADS"

if "numpy" in sys.modules and os.environ.get(_VARIABLE) != "1":
    raise ImportError(
        f"numpy was imported before demo with {_VARIABLE}={os.environ.get(_VARIABLE, '(unset)')}; "
        f"import demo first, or set {_VARIABLE}=1 in the environment")
os.environ[_VARIABLE] = "1"
