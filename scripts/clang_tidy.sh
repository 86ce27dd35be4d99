#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over every C file that the clang build compiles outside tests.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh clang > /dev/null
git ls-files -co --exclude-standard 'src/*.c' 'tools/*.c' |
	while read -r file; do
		# Only what the build knows: no flags are known for anything else.
		if grep -q "\"\.\./$file\"" build-clang/compile_commands.json; then echo "$file"; fi
	done > build-clang/tidy_files
[ -s build-clang/tidy_files ] || { echo "no files found" >&2; exit 1; }
xargs -a build-clang/tidy_files -P "${JOBS:-$(nproc)}" -n 4 clang-tidy -p build-clang --quiet
