#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Check every model: the model as it is must hold, each broken variant must fail.
# Usage: spec/run.sh [model ...]. Prints a line a run and "N passed, N failed" at the end.
set -u
cd "$(dirname "$0")" || exit 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

# model, define or "-"; prints "holds" or "fails" (or "broken: ...")
verify() {
	local defs=()
	[ "$2" = - ] || defs=("-D$2")
	(
		cd "$work" && rm -f pan* ./*.trail &&
		spin "${defs[@]}" -a "$OLDPWD/$1.pml" >spin.out 2>&1 &&
		gcc -O2 -w -DSAFETY -DMEMLIM=4000 -DCOLLAPSE -o pan pan.c >gcc.out 2>&1 &&
		timeout 300 ./pan -m1000000 >pan.out 2>&1
	) || { echo "broken: $(tail -n 2 "$work"/*.out | tr '\n' ' ')"; return; }
	if grep -q "max search depth too small\|out of memory" "$work/pan.out"; then
		echo "broken: not searched whole"
		return
	fi
	if grep -q "errors: 0" "$work/pan.out"; then echo holds; else echo fails; fi
}

check() { # model, variant, wanted
	local got
	got=$(verify "$1" "$2")
	if [ "$got" = "$3" ]; then
		passed=$((passed + 1))
		printf 'ok      %-10s %-18s %s (%s states)\n' "$1" "$2" "$got" \
			"$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$work/pan.out")"
	else
		failed=$((failed + 1))
		printf 'FAILED  %-10s %-18s wanted %s, got %s\n' "$1" "$2" "$3" "$got"
	fi
}

while read -r model variants; do
	case $model in '' | '#'*) continue ;; esac
	[ $# -eq 0 ] || [[ " $* " == *" $model "* ]] || continue
	check "$model" - holds
	for v in $variants; do check "$model" "$v" fails; done
done <models.txt
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
