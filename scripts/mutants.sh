#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Plants each bug of tests/mutants in a copy of the tree and demands that the simulator finds it
# within so many seeds; the tree as it is has to pass them all.
set -euo pipefail
cd "$(dirname "$0")/.."

seeds=2000
root=$PWD
work=build-mutants
source=$work/source
build=$work/build

fresh_copy() {
	# Only what has changed is written, so that the next build is a short one.
	mkdir -p "$source"
	git ls-files -co --exclude-standard -z | while IFS= read -r -d '' file; do
		[ -f "$file" ] || continue
		cmp -s "$file" "$source/$file" && continue
		mkdir -p "$source/$(dirname "$file")"
		cp -p "$file" "$source/$file"
		touch "$source/$file"
	done
}

build_simulator() {
	[ -f "$build/build.ninja" ] || meson setup "$build" "$source" > "$work/setup.log" 2>&1
	ninja -C "$build" -j "${JOBS:-$(nproc)}" tests/sim/sim_test > "$work/build.log" 2>&1 || {
		tail -30 "$work/build.log"
		return 1
	}
}

simulate() {
	"$build/tests/sim/sim_test" --seeds "$seeds" > "$work/run.log" 2>&1
}

fresh_copy
build_simulator
if simulate; then
	echo "PASS mutants/none: $seeds seeds"
else
	echo "FAIL mutants/none: the tree itself fails"
	tail -5 "$work/run.log"
	exit 1
fi

failed=0
for patch in tests/mutants/*.patch; do
	name=$(basename "$patch" .patch)
	fresh_copy
	if ! (cd "$source" && patch -s -p1 < "$root/$patch"); then
		echo "FAIL mutants/$name: the patch does not apply any more; write it anew"
		failed=1
		continue
	fi
	build_simulator || { echo "FAIL mutants/$name: does not build"; failed=1; continue; }
	# A bug is found by a broken rule or a broken assertion, with its seed, and by nothing else.
	if ! simulate && found=$(grep -m1 -E '^seed [0-9]+ at|signal at seed' "$work/run.log"); then
		echo "PASS mutants/$name: $found"
	else
		echo "FAIL mutants/$name: not found within $seeds seeds"
		failed=1
	fi
done
exit $failed
