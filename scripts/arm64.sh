#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds for arm64 and runs the tests under qemu-user: that the code is right there as far as a
# machine with strong ordering can show it. Memory that is weakly ordered is what spec/ is for.
# Uses build-arm64/, and build-arm64-root/ for the two libraries that the tests link with, whose
# packages are unpacked there; the system gets a compiler and an emulator and no foreign packages.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/build-arm64-root
tools=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)
libraries=(libcmocka0 libcmocka-dev libcjson1 libcjson-dev)

# qemu-user has no process_vm_readv; what these four programs show is the kernel's, not the CPU's.
left_out='^(prov/host/(path|policy|stop)|prov/tcp/listen)$'

install_tools() {
	dpkg-query -W -f '${Status}\n' "${tools[@]}" 2> /dev/null |
		grep -c 'ok installed' | grep -qx "${#tools[@]}" && return
	local sudo=()
	[ "$(id -u)" -eq 0 ] || sudo=(sudo)
	"${sudo[@]}" apt-get update -q
	"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -q --no-install-recommends "${tools[@]}"
}

# Packages of another architecture, unpacked beside the tree and not installed.
fetch_libraries() {
	[ -f "$root/stamp" ] && return
	local options=(-o "Dir::State::lists=$root/lists" -o "Dir::Cache=$root/cache"
		-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root)
	rm -rf "$root"
	mkdir -p "$root/lists/partial" "$root/cache/archives/partial" "$root/sysroot"
	apt-get -q "${options[@]}" update
	(cd "$root" && apt-get -q "${options[@]}" download "${libraries[@]}")
	for package in "$root"/*.deb; do
		dpkg-deb -x "$package" "$root/sysroot"
	done
	rm -rf "$root/lists" "$root/cache"
	touch "$root/stamp"
}

write_cross_file() {
	local lib=$root/sysroot/usr/lib/aarch64-linux-gnu
	cat > "$root/cross.ini" << END
[binaries]
c = 'aarch64-linux-gnu-gcc'
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkgconfig = 'pkg-config'
exe_wrapper = ['qemu-aarch64', '-L', '/usr/aarch64-linux-gnu', '-E', 'LD_LIBRARY_PATH=$lib']
[properties]
sys_root = '$root/sysroot'
pkg_config_libdir = '$lib/pkgconfig'
[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'aarch64'
endian = 'little'
END
}

install_tools
fetch_libraries
if [ ! -f build-arm64/build.ninja ]; then
	write_cross_file
	rm -rf build-arm64
	meson setup build-arm64 --cross-file "$root/cross.ini" -Dwerror=true -Djob_key=disabled \
		-Dtools=disabled -Dverbs=disabled -Dgpu=disabled
fi
ninja -C build-arm64 -j "${JOBS:-$(nproc)}"

listed=$(meson test -C build-arm64 --no-rebuild --list | sed 's/.* \/ //')
mapfile -t tests < <(
	grep -v '^contract/\|^faults/\|^sim$' <<< "$listed" | grep -Ev "$left_out"
	grep -E '^contract/(sim/2/threads|host-ring/2/threads)/' <<< "$listed"
	grep -E '^contract/(tcp|host)/1/threads/(data|imm|mirror|session)$' <<< "$listed"
)
scripts/meson_tests.py build-arm64 -t 6 "${tests[@]}"
qemu-aarch64 -L /usr/aarch64-linux-gnu -E \
	"LD_LIBRARY_PATH=$root/sysroot/usr/lib/aarch64-linux-gnu" build-arm64/tests/sim/sim_test \
	--seeds "${SEEDS:-100}"
