# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# A machine that is moved to another host: its endpoints leave the segment, and return to one.
# Between the two, segment.left is in the place of segment.conf, so no process finds a segment, and
# endpoints of running jobs give theirs up. What users gave its virtual functions is remembered, too.

leave_limit=60

# leave_refuse STATUS WORDS...: the reason for the host, and the end. The machine stays a node.
leave_refuse() {
	leave_status=$1
	shift
	printf 'nearmetal-guest: %s\n' "$*" >&2
	exit "$leave_status"
}

# leave_segment [SECONDS]: ask all endpoints to leave, and wait. Those that do not are named, and
# nothing is asked any more.
leave_segment() {
	limit=${1:-$leave_limit}
	case $limit in
	'' | *[!0-9]* | ??????*) leave_refuse 2 "leave: '$limit' is not a number of seconds" ;;
	esac
	network_remember
	if [ ! -s "$run/segment.conf" ]; then
		[ ! -s "$run/segment.left" ] || {
			printf 'segment: left before\n'
			return 0
		}
		printf 'segment: none\n'
		return 0
	fi
	words=$(nearmetal-segment quiesce "$run/segment.conf" 2>&1) || leave_refuse 1 "leave: $words"
	read -r began _ </proc/uptime
	while :; do
		words=$(nearmetal-segment freeze "$run/segment.conf" 2>&1) && break
		[ "$?" = 4 ] || leave_give_up 1 "$words"
		leave_has_time || leave_give_up 4 "after $limit s: $words"
		sleep 0.2
	done
	mv -f "$run/segment.conf" "$run/segment.left" || leave_give_up 1 "cannot write in $run"
	while leave_mapped; do
		leave_has_time ||
			leave_give_up 4 "after $limit s: processes still have the segment in their memory: $mapped"
		sleep 0.2
	done
	printf 'segment: left\n'
}

leave_has_time() {
	read -r now _ </proc/uptime
	[ "$((${now%.*} - ${began%.*}))" -lt "$limit" ]
}

# leave_mapped: sets $mapped to the processes that have the segment in their memory; false: none
# has. The kernel keeps such memory when the device goes, so it may show the next one.
leave_mapped() {
	mapped=
	set --
	while read -r key _ file _; do
		case $key in own | all) ;; *) continue ;; esac
		file=$(readlink -f "$file") && set -- "$@" -e " $file"
	done <"$run/segment.left"
	[ "$#" = 0 ] ||
		mapped=$(grep -lF "$@" /proc/[0-9]*/maps 2>/dev/null | cut -d/ -f3 | tr '\n' ' ')
	[ -n "$mapped" ]
}

leave_give_up() {
	[ ! -s "$run/segment.left" ] || mv -f "$run/segment.left" "$run/segment.conf"
	nearmetal-segment run "$run/segment.conf" >/dev/null 2>&1
	leave_refuse "$1" "leave: $2"
}

# leave_return: to its virtual function, and to the part that the seed names, if it names one. With
# another seed on standard input that one holds from now on.
leave_return() {
	rm -f "$run/failed"
	put "$etc/seed.json.new" 0600
	if [ -s "$etc/seed.json.new" ]; then
		seed_take <"$etc/seed.json.new"
	fi
	rm -f "$etc/seed.json.new"
	seed_read
	network_return
	segment_set
	rm -f "$run/segment.left" "$run"/vf.*
	[ -s "$run/segment.conf" ] || {
		printf 'segment: none\n'
		return 0
	}
	words=$(nearmetal-segment run "$run/segment.conf" 2>&1) || fail "segment: $words"
	printf 'segment: %s\n' "$words"
}
