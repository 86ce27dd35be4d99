# SPDX-License-Identifier: Apache-2.0
"""Modules shaped like those of other libraries, for programs that were written for them."""
