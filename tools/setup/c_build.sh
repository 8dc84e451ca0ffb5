#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Configures (once) and builds one variant of the C code.
#
#   tools/setup/c_build.sh normal   build/c       what is installed and measured
#   tools/setup/c_build.sh asan     build/c-asan  AddressSanitizer and UndefinedBehaviorSanitizer
#   tools/setup/c_build.sh tsan     build/c-tsan  ThreadSanitizer
#   tools/setup/c_build.sh faults   build/c-faults  with marks at which a process dies, stops or is late
#   tools/setup/c_build.sh fuzz     build/c-fuzz  fuzzers, clang
#
# Every warning is an error, in every variant and on every machine. FUZZ_SECONDS: what `meson test`
# gives each fuzzer.

set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
export PATH=$root/build/venv/bin:$PATH

options=(-Dwerror=true)
if [[ -d $root/build/ucx/libucx ]]; then options+=("-Ducx=$root/build/ucx/libucx"); fi
strict='-fno-sanitize-recover=all -fno-omit-frame-pointer'

case ${1-} in
normal) dir=build/c ;;
asan)
	dir=build/c-asan
	options+=(-Db_sanitize=address,undefined -Db_lundef=false "-Dc_args=$strict")
	;;
tsan)
	dir=build/c-tsan
	# The sanitizer does not follow fences and gcc says so. Ours order memory between machines,
	# which no sanitizer sees.
	options+=(-Db_sanitize=thread -Db_lundef=false "-Dc_args=$strict -Wno-tsan")
	;;
faults)
	dir=build/c-faults
	options+=(-Dfaults=true -Dprovider=disabled -Dspank=disabled)
	;;
fuzz)
	dir=build/c-fuzz
	options+=(-Dfuzz=true "-Dfuzz_seconds=${FUZZ_SECONDS:-5}" -Dprovider=disabled -Dspank=disabled -Db_sanitize=address,undefined -Db_lundef=false
		"-Dc_args=$strict -fsanitize=fuzzer-no-link")
	export CC=clang
	;;
*)
	sed -n '4,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
	exit 2
	;;
esac

dir=$root/$dir
if [[ ! -f $dir/build.ninja ]]; then
	# Absent, or a first configuration that was interrupted.
	rm -rf -- "$dir"
	meson setup "${options[@]}" "$dir" "$root"
	printf '%s\n' "${options[@]}" >"$dir/.options"
elif [[ $(cat "$dir/.options" 2>/dev/null) != "$(printf '%s\n' "${options[@]}")" ]]; then
	meson configure "${options[@]}" "$dir"
	printf '%s\n' "${options[@]}" >"$dir/.options"
fi
exec ninja -C "$dir"
