# SPDX-License-Identifier: Apache-2.0
# Thin calls: Meson builds, scripts/parts.txt lists what the checks run.
.PHONY: all setup build check check-deep check-vllm check-vm-full coverage demo demo-hosts bench bench-verbs bench-vllm \
	mutants soak spec clean

all: build

# Debian packages and the Python environment in .venv; nothing to do the second time.
setup:
	@scripts/setup.sh

build: setup
	@scripts/build.sh gcc

check: setup
	@scripts/run_parts.py check

check-deep: setup
	@scripts/run_parts.py deep

# Everything of verbs, on soft-RoCE in virtual machines.
check-vm-full: setup
	@scripts/run_parts.py vm-full

# The Promela models and their broken variants.
spec: setup
	@spec/run.sh

# Inside a real vLLM on the CPU. Makes its environment outside the tree if it is missing.
check-vllm: build
	@tests/vllm/env/make.sh
	@.venv/bin/python -m pytest -q -rs tests/vllm

soak: setup
	@scripts/run_parts.py soak

demo: build
	@demo/run

demo-hosts: build
	@demo/run --hosts

bench: build
	@bench/run

# Provider verbs against perftest (Debian package perftest), in a virtual machine.
bench-verbs: build
	@bench/verbs

# Time to first token beside vLLM's NixlConnector, through four servers of vLLM on the CPU.
bench-vllm: build
	@tests/vllm/env/make.sh
	@.venv/bin/python tests/vllm/first_token.py

# Lines of src/core that the simulator reaches.
coverage: setup
	@scripts/coverage.py

mutants: setup
	@scripts/mutants.sh

clean:
	rm -rf build build-asan build-tsan build-clang build-cov build-logs build-arm64 build-arm64-root
