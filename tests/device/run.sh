#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs device_matrix over one channel, as two processes (self: one) that find each other in a
# directory of their own.
#
#   tests/device/run.sh BUILD CHANNEL [ARGUMENT...]
#
# BUILD: the build directory. CHANNEL: self, shm, segment or net; staged: shm without handles;
# gpudirect: net over an adapter that reaches devices (adapter.c), gpudirect-one: at one rank only;
# none: device memory is not offered, because the driver or a GPU is missing. NM_DRIVER: the
# directory of the libcuda.so.1 to use; empty: the machine's own. PROVIDER: the directory of
# libnearmetal-fi.so. NM_DEVICE: rocm or ze; otherwise cuda. NM_SEAL: a command that gives each
# process namespaces of its own, such as "unshare -n -i -u -p -f --mount-proc". NM_WAY: words that
# the statistics say about the way.

set -euo pipefail

build=$1 channel=$2
shift 2
here=$(mktemp -d)
trap 'rm -rf -- "$here"' EXIT
mkdir "$here/rundir" "$here/job" "$here/stats"
# What the statistics of an endpoint say about the way of large messages.
case $channel in
shm) way="by handle: " ;;
staged | segment) way="window to window; by handle not: " ;;
net) way="staged: the network's provider does not offer FI_HMEM" ;;
gpudirect) way="GPUDirect by " ;;
gpudirect-one) way="staged: NEARMETAL_GPUDIRECT=off" ;;
esac
export NM_DEVICE=${NM_DEVICE-cuda}
if [[ $NM_DEVICE != cuda ]]; then
	way="staged: memory of .* is copied by calls of its driver only"
	NM_DRIVER=${NM_DRIVER-$build/tests/device/$NM_DEVICE}
fi
way=${NM_WAY-${way-}}
if [[ $channel == staged ]]; then
	channel=shm
	export NEARMETAL_CMA=off
	# A small pool, whose chunks are soon used again; with -f its many copies take too long.
	[[ " $* " == *" -f "* ]] || export NEARMETAL_POOL_SIZE=1M
fi
if [[ $channel == gpudirect* ]]; then
	case $channel in
	gpudirect) export NM_EXPECT_DIRECT=yes NEARMETAL_NET_TIMEOUT_MS=1000 ;;
	*) one=off ;;
	esac
	channel=net
	export NEARMETAL_NET=nmadapter
fi
export FI_PROVIDER_PATH=${PROVIDER-$build/src/provider}:$build/tests/device
export NEARMETAL_STATS_DIR=$here/stats NEARMETAL_RUNDIR=$here/rundir NEARMETAL_CHANNELS=$channel NEARMETAL_ON_LOSS=error
# Under AddressSanitizer: libfabric 1.17 and the libraries that it loads leak.
echo leak:libfabric.so >"$here/leaks"
export LSAN_OPTIONS=suppressions=$here/leaks:print_suppressions=0
driver=${NM_DRIVER-$build/tests/device}
[[ -z $driver ]] || export LD_LIBRARY_PATH=$driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
program=$build/tests/device/device_matrix

if [[ $channel == none ]]; then
	unset NEARMETAL_CHANNELS
	export NEARMETAL_LOG=info
	NM_STAND_IN_GPUS=0 "$program" -x 2>&1 | tee "$here/said"
	grep -q 'no device: the driver of NVIDIA shows no GPU' "$here/said"
	# A library that is none, where the loader looks first.
	: >"$here/libcuda.so.1"
	LD_LIBRARY_PATH=$here "$program" -x 2>&1 | tee "$here/said"
	grep -q 'no device: no driver of NVIDIA' "$here/said"
	exit
fi
if [[ $channel == self ]]; then
	"$program" -n 1 -r 0 -d "$here/job" "$@"
	exit
fi
if [[ $channel == segment ]]; then
	"$build/src/tools/nearmetal-segment" create "$here/segment" --parts 2 --part-size 16M >/dev/null
	token=$("$build/src/tools/nearmetal-segment" show --json "$here/segment" |
		sed -n 's/.*"token": *"\{0,1\}\([0-9a-f]*\).*/\1/p' | head -n 1)
	umask 077
	for part in 0 1; do
		printf 'version = 1\ndevice = dax\nall = %s\npart = %s\ntoken = %s\nlock = %s\n' \
			"$here/segment" $part "$token" "$here/$part.lock" >"$here/$part.conf"
	done
fi
NEARMETAL_GPUDIRECT=${one-auto} NEARMETAL_SEGMENT=$here/1.conf ${NM_SEAL-} "$program" -n 2 -r 1 -d "$here/job" "$@" &
other=$!
NEARMETAL_SEGMENT=$here/0.conf ${NM_SEAL-} "$program" -n 2 -r 0 -d "$here/job" "$@" || {
	code=$?
	kill $other 2>/dev/null || true
	wait $other || true
	exit $code
}
wait $other
# A GPU, or other namespaces, may have other ways.
[[ -n $driver && (-z ${NM_SEAL-} || -n ${NM_WAY-}) ]] || exit 0
grep -aq "$way" "$here"/stats/*.stats || {
	echo "no endpoint says that its way is '$way'" >&2
	exit 1
}
