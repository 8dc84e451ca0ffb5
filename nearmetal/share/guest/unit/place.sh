# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# The place for jobs: /run/nearmetal-cluster, with the agent that the host has brought.

place=/run/nearmetal-cluster

# place_make: nothing where the host brought no agent yet. Cloud images mount /run without programs.
place_make() {
	[ -e "$lib/agent" ] || return 0
	mkdir -p -m 0755 "$place" || fail "cannot make $place"
	if findmnt -no OPTIONS -T "$place" | tr , '\n' | grep -qx noexec; then
		mount -t tmpfs -o mode=0755,nosuid,nodev tmpfs "$place" || fail "cannot mount $place"
	fi
	mkdir -p -m 0755 "$place/jobs/files" || fail "cannot make $place/jobs"
	put "$place/agent" 0755 <"$lib/agent"
}
