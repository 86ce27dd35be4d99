#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh [SECONDS [TARGET...]]: runs each fuzz target, or those named, for so many seconds (30).
# Prints "PASS fuzz:NAME" or "FAIL fuzz:NAME" and what failed; the status is 1 if one failed.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-30}
shift || true
scripts/build.sh fuzz
folder=build-fuzz
mkdir -p $folder/corpus $folder/found
$folder/tests/fuzz/fuzz_seeds $folder/corpus

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
	for path in $folder/corpus/*/; do
		targets+=("$(basename "$path")")
	done
fi

# No input may make the library allocate more than a mebibyte, or keep it busy for seconds.
limits=(-malloc_limit_mb=1 -rss_limit_mb=1024 -timeout=5 -max_len=4096)
fuzz() { # fuzz NAME
	if "$folder/tests/fuzz/fuzz_$1" -max_total_time="$seconds" "${limits[@]}" \
		-artifact_prefix="$folder/found/$1-" -print_final_stats=1 \
		"$folder/corpus/$1" > "$folder/found/$1.log" 2>&1; then
		echo passed > "$folder/found/$1.end"
	fi
}

# As many at a time as there are processors.
rm -f "$folder"/found/*.end
for name in "${targets[@]}"; do
	while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-$(nproc)}" ]; do
		wait -n
	done
	fuzz "$name" &
done
wait

failed=0
for name in "${targets[@]}"; do
	log=$folder/found/$name.log
	if [ -f "$folder/found/$name.end" ]; then
		echo "PASS fuzz:$name"
		grep -E 'number_of_executed_units' "$log" | sed "s/^/  $name: /"
	else
		echo "FAIL fuzz:$name"
		tail -n 40 "$log"
		failed=1
	fi
done
exit $failed
