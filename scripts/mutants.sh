#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Plants each bug of tests/mutants in a copy of the tree and demands that the simulator finds it
# within so many seeds, or the test that the patch names ("Found by: PROGRAM" ahead of its diff).
# The tree as it is has to pass. Only those programs are built.
set -euo pipefail
cd "$(dirname "$0")/.."

seeds=2000
root=$PWD
work=build-mutants
source=$work/source
build=$work/build
simulator=tests/sim/sim_test

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

build() {
	[ -f "$build/build.ninja" ] || meson setup "$build" "$source" > "$work/setup.log" 2>&1
	ninja -C "$build" -j "${JOBS:-$(nproc)}" "$1" > "$work/build.log" 2>&1 || {
		tail -30 "$work/build.log"
		return 1
	}
}

# A named test fails, or the simulator says with which seed a rule or an assertion broke.
run() {
	if [ "$1" != "$simulator" ]; then
		"$build/$1" > "$work/run.log" 2>&1 || found="found by $1"
	else
		"$build/$1" --seeds "$seeds" --jobs 2 > "$work/run.log" 2>&1 ||
			found=$(grep -m1 -E '^seed [0-9]+ at|signal at seed' \
				"$work/run.log") || true
	fi
	[ -z "$found" ]
}

fresh_copy
found=
if build "$simulator" && run "$simulator" && grep -q '^PASS sim/seeds' "$work/run.log"; then
	echo "PASS mutants/none: $seeds seeds"
else
	echo "FAIL mutants/none: the tree itself fails"
	tail -5 "$work/run.log"
	exit 1
fi

failed=0
for patch in tests/mutants/*.patch; do
	name=$(basename "$patch" .patch)
	target=$(sed -n 's/^Found by: //p;/^diff/q' "$patch")
	target=${target:-$simulator}
	found=
	if ! (cd "$source" && patch -s -p1 < "$root/$patch"); then
		echo "FAIL mutants/$name: the patch does not apply any more; write it anew"
		failed=1
		fresh_copy
		continue
	fi
	if ! build "$target"; then
		echo "FAIL mutants/$name: does not build"
		failed=1
	elif run "$target"; then
		echo "FAIL mutants/$name: not found by $target, $seeds seeds"
		failed=1
	else
		echo "PASS mutants/$name: $found"
	fi
	(cd "$source" && patch -s -R -p1 < "$root/$patch")
done
exit $failed
