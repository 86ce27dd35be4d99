# SPDX-License-Identifier: Apache-2.0
"""Python tests import the tree they lie in, with the one BLAS thread that bit comparisons need."""
import os
import sys
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read once, when the first test imports numpy
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
