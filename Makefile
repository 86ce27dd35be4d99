# SPDX-License-Identifier: Apache-2.0
# Thin calls; the work is in meson and scripts/.
.PHONY: build
build:
	@test -f build/build.ninja || meson setup build -Dwerror=true
	@ninja -C build -j2
