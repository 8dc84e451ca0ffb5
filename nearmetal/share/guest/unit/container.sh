# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# What a container of this machine must be given, as options of Podman, one per line.

# container_options [DIRECTORY]: DIRECTORY is where the containers of one job on this machine meet.
container_options() {
	[ -z "${1-}" ] || container_meeting_place "$1"
	printf '%s\n' --network=host "--user=$(id -u "$user"):$(id -g "$user")" \
		"--group-add=$(getent group "$group" | cut -d: -f3)" \
		"--env-file=$etc/environment" "--volume=$lib:$lib:ro" "--volume=$run:$run"
	for tool in nearmetal-info nearmetal-segment; do
		printf '%s\n' "--volume=/usr/bin/$tool:/usr/bin/$tool:ro"
	done
	[ ! -e "$run/segment.conf" ] || container_segment
	[ -z "${1-}" ] || printf '%s\n' "--volume=$1:$1" "--env=NEARMETAL_RUNDIR=$1"
}

# The names in /dev/nearmetal lead into /sys, which containers see read-only: so what they lead to.
container_segment() {
	for name in own all; do
		device=$(readlink -f "/dev/nearmetal/$name") || continue
		if [ -c "$device" ]; then
			printf '%s\n' "--device=$device:/dev/nearmetal/$name:rw"
		elif [ -f "$device" ]; then
			# Its path has colons, so no --volume.
			rights=
			[ "$name" = own ] || rights=,readonly=true
			printf '%s\n' \
				"--mount=type=bind,source=$device,destination=/dev/nearmetal/$name$rights"
		fi
	done
}

container_meeting_place() {
	case $1 in
	*[!A-Za-z0-9._/-]* | *..*) fail_options "$1: letters, digits, '.', '_' and '-' only" ;;
	/dev/shm/?*) ;;
	*) fail_options "$1 is not in /dev/shm: containers meet in memory" ;;
	esac
	[ -d "$1" ] || install -d -m 0700 -o "$user" -g "$user" "$1" ||
		fail_options "cannot make $1"
}

fail_options() {
	printf 'nearmetal-guest: %s\n' "$1" >&2
	exit 1
}
