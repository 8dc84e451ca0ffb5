# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What builds and tests nearmetal's packages, for `setup.sh --packages`.

install_zig() {
	"${pip[@]}" install --require-hashes --no-deps --only-binary :all: \
		-r "$here/requirements-packages.txt"
	"$venv/bin/python" -m ziglang version
}

# Its stamp names the one of the environment: a new environment needs it again.
zig_step() {
	step zig "C compiler for wheels" "$venv/bin/python" \
		"$(hash_of "$here/requirements-packages.txt" "$here/packages.sh" "$stamps/python")" install_zig
}
