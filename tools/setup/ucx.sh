# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# build/ucx/libucx: UCX 1.22 from its wheel, for src/ucx and its tests, with bin, include and lib.
# build/ucx/libucx_cu12.libs: libraries that its programs look for beside it.

ucx_dir=$build/ucx

make_ucx() {
	local fresh=$scratch/ucx
	mkdir -p "$fresh"
	"${pip[@]}" download --no-deps --require-hashes --only-binary :all: --dest "$fresh" \
		-r "$here/ucx.txt"
	"$venv/bin/python" - "$fresh"/libucx_cu12-*.whl "$fresh/unpacked" <<'PYTHON'
import sys, zipfile
wheel, place = sys.argv[1:]
keep = ("libucx/bin/", "libucx/include/", "libucx/lib/", "libucx_cu12.libs/")
with zipfile.ZipFile(wheel) as archive:
    names = [n for n in archive.namelist() if n.startswith(keep) and not n.endswith((".a", ".la"))]
    archive.extractall(place, names)
PYTHON
	chmod 0755 "$fresh"/unpacked/libucx/bin/*
	LD_LIBRARY_PATH=$fresh/unpacked/libucx/lib "$fresh/unpacked/libucx/bin/ucx_info" -v
	replace_dir "$fresh/unpacked" "$ucx_dir"
}

ucx_step() {
	step ucx "UCX 1.22" "$ucx_dir/libucx/bin/ucx_perftest" \
		"$(hash_of "$here/ucx.txt" "$here/ucx.sh")" make_ucx
}
