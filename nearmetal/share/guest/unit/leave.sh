# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# A machine that is moved to another host: its endpoints leave the segment, and return to one.
# Between the two, segment.left is in the place of segment.conf, so no process finds a segment, and
# endpoints of running jobs give theirs up. What users gave its virtual functions is remembered, too.
# If the device of the network goes, they close their network as well: each has a lock of the notice
# ($run/network) as long as it uses one.

leave_limit=60

# leave_refuse STATUS WORDS...: the reason for the host, and the end. The machine stays a node.
leave_refuse() {
	leave_status=$1
	shift
	printf 'nearmetal-guest: %s\n' "$*" >&2
	exit "$leave_status"
}

# leave_prepare: the notice, before any process of a job starts.
leave_prepare() {
	[ -e "$run/network" ] || (umask 022 && leave_say 'stay ')
}

# leave_say WORD: written in place, because endpoints have the file open; all words are of one length.
leave_say() {
	printf '%s\n' "$1" 1<>"$run/network"
}

# leave_machine [--network] [SECONDS]: ask all endpoints to leave, and wait. Those that do not are
# named, and nothing is asked any more.
leave_machine() {
	leaves_network=
	[ "${1-}" != --network ] || {
		leaves_network=1
		shift
	}
	limit=${1:-$leave_limit}
	case $limit in
	'' | *[!0-9]* | ??????*) leave_refuse 2 "leave: '$limit' is not a number of seconds" ;;
	esac
	read -r began _ </proc/uptime
	network_remember
	leave_segment
	[ -z "$leaves_network" ] || leave_network
}

leave_segment() {
	if [ ! -s "$run/segment.conf" ]; then
		[ ! -s "$run/segment.left" ] || {
			printf 'segment: left before\n'
			return 0
		}
		printf 'segment: none\n'
		return 0
	fi
	words=$(nearmetal-segment quiesce "$run/segment.conf" 2>&1) || leave_refuse 1 "leave: $words"
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

leave_network() {
	[ -e "$run/network" ] ||
		leave_give_up 1 "there is no $run/network; \`nearmetal-guest configure\` makes it before jobs start"
	leave_say leave
	until flock -n "$run/network" true; do
		leave_has_time ||
			leave_give_up 4 "after $limit s: processes still use the network: $(leave_users)"
		sleep 0.1
	done
	printf 'network: left\n'
}

# leave_users: the processes that have a lock of the notice.
leave_users() {
	file=$(ls -i "$run/network") && grep " FLOCK .*:${file%% *} " /proc/locks |
		while read -r _ _ _ _ pid _; do printf '%s ' "$pid"; done
}

# leave_stay: the network is there, or there again.
leave_stay() {
	[ ! -e "$run/network" ] || leave_say 'stay '
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
	leave_stay
	[ ! -s "$run/segment.left" ] || mv -f "$run/segment.left" "$run/segment.conf"
	[ ! -s "$run/segment.conf" ] || nearmetal-segment run "$run/segment.conf" >/dev/null 2>&1
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
	leave_stay
	segment_set
	rm -f "$run/segment.left" "$run"/vf.*
	[ -s "$run/segment.conf" ] || {
		printf 'segment: none\n'
		return 0
	}
	words=$(nearmetal-segment run "$run/segment.conf" 2>&1) || fail "segment: $words"
	printf 'segment: %s\n' "$words"
}
