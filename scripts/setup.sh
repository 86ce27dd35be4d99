#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what scripts/apt_packages.txt and scripts/requirements.txt list, only what is missing.
# Stamps hold the checksum of the list that was satisfied last, so a second run does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p .stamps

packages() {
	grep -v '^#' scripts/apt_packages.txt
}

missing_packages() {
	local package
	for package in $(packages); do
		dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
			echo "$package"
	done
}

stamp_holds() { # stamp_holds NAME SUM
	[ -f ".stamps/$1" ] && [ "$(cat ".stamps/$1")" = "$2" ]
}

apt_sum=$(sha256sum < scripts/apt_packages.txt)
if ! stamp_holds apt "$apt_sum"; then
	missing=$(missing_packages)
	if [ -n "$missing" ]; then
		sudo=()
		if [ "$(id -u)" -ne 0 ]; then
			command -v sudo > /dev/null || {
				echo "install these as root, then run this again:" $missing >&2
				exit 1
			}
			sudo=(sudo)
		fi
		echo "installing" $missing
		"${sudo[@]}" apt-get update -q
		"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -q --no-install-recommends $missing
	fi
	echo "$apt_sum" > .stamps/apt
fi

pip_sum=$(sha256sum < scripts/requirements.txt)
if ! stamp_holds pip "$pip_sum" || [ ! -x .venv/bin/python ]; then
	[ -x .venv/bin/python ] || python3 -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check \
		-r scripts/requirements.txt
	echo "$pip_sum" > .stamps/pip
fi
