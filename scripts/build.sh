#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build.sh KIND: builds one of the folders below and prints its name last.
#   gcc    build/        what users get, warnings are errors
#   clang  build-clang/  the same with clang and its thread-safety analysis
#   asan   build-asan/   address and undefined-behaviour sanitizer
#   tsan   build-tsan/   thread sanitizer
#   fuzz   build-fuzz/   the fuzz targets alone, with clang, both sanitizers of asan and libFuzzer
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:?gcc, clang, asan, tsan or fuzz}
compiler=gcc
targets=()
options=(-Dwerror=true)
case $kind in
gcc) folder=build ;;
clang)
	folder=build-clang compiler=clang
	options+=(-Dc_args=-Wthread-safety)
	;;
asan)
	folder=build-asan
	options+=(-Db_sanitize=address,undefined -Db_lundef=false)
	# gcc 12 takes the null checks that the sanitizer puts in for a sign that a format is null.
	options+=("-Dc_args=-fno-omit-frame-pointer -Wno-format-truncation")
	;;
tsan)
	folder=build-tsan
	options+=(-Db_sanitize=thread -Db_lundef=false)
	;;
fuzz)
	folder=build-fuzz compiler=clang
	targets=(fuzz)
	options+=(-Dfuzz=true -Db_sanitize=address,undefined -Db_lundef=false)
	options+=("-Dc_args=-fsanitize=fuzzer-no-link -fno-sanitize-recover=all")
	;;
*)
	echo "unknown kind $kind" >&2
	exit 2
	;;
esac

# A setup that broke half-way leaves no build.ninja; it starts anew.
if [ ! -f "$folder/build.ninja" ]; then
	rm -rf "$folder"
	CC=$compiler meson setup "$folder" "${options[@]}"
fi
ninja -C "$folder" -j "${JOBS:-$(nproc)}" "${targets[@]}"
echo "$folder"
