# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# What a container must be given to use nearmetal, as options of its engine, one per line.
#
# `nearmetal-guest container` in a virtual machine and `nearmetal container` on a host print them.
# The caller sets the facts of its machine:
#   provider      the file of the provider
#   directories   for an MPI over UCX, in place of it: SOURCE:DESTINATION, one per line
#   tools         programs for the container, separated by spaces
#   values        the variables, one NAME=VALUE per line, with the provider in $container_home
#   run           the directory of segment.conf and its lock, if the machine has a segment
#   user, group   UID:GID of the ranks and a further GID; empty: as the engine does by itself
#   owner         the user that owns the meeting directory; empty: the caller
container_home=/usr/lib/nearmetal

# container_options [--engine=ENGINE] [DIRECTORY]: DIRECTORY is where the containers of a job meet.
container_options() {
	engine=podman
	case ${1-} in
	--engine=*)
		engine=${1#*=}
		shift
		;;
	esac
	case $engine in
	podman | docker | charliecloud | apptainer) ;;
	*) fail_options "engine $engine is not known: podman, docker, charliecloud, apptainer" ;;
	esac
	[ -z "${1-}" ] || container_meeting_place "$1"
	case $engine in
	podman | docker) container_isolated "${1-}" ;;
	# These engines leave users, network, /dev and /sys as they are.
	apptainer)
		container_library
		container_variables "$container_home"
		;;
	charliecloud) container_by_directory ;;
	esac
	[ -z "${1-}" ] || container_variable "NEARMETAL_RUNDIR=$1"
}

# container_by_directory: for Charliecloud, which mounts only over what an image has. In a package the
# provider is a link to another directory, which would lead nowhere in the container.
container_by_directory() {
	if [ -n "${directories-}" ]; then
		container_directories ''
		container_variables "$container_home"
		return
	fi
	file=$(readlink -f "$provider") || file=
	[ -f "$file" ] || fail_options "$provider: no such file"
	[ "${file##*/}" = "${provider##*/}" ] || fail_options "$provider: a link to another name, $file"
	container_place "${file%/*}" /mnt ''
	container_variables /mnt
}

container_library() {
	if [ -n "${directories-}" ]; then
		container_directories :ro
	else
		container_place "$provider" "$container_home/${provider##*/}" :ro
	fi
}

# container_directories RIGHTS
container_directories() {
	while IFS=: read -r source destination; do
		container_place "$source" "$destination" "$1"
	done <<-DIRECTORIES
		$directories
	DIRECTORIES
}

# container_isolated DIRECTORY: for engines that share nothing with the machine by themselves.
container_isolated() {
	printf '%s\n' --network=host ${user:+"--user=$user"} ${group:+"--group-add=$group"}
	container_library
	for tool in $tools; do
		container_place "$tool" "/usr/bin/${tool##*/}" :ro
	done
	container_variables "$container_home"
	if [ -e "$run/segment.conf" ]; then
		container_place "$run" "$run" ''
		container_segment
	fi
	[ -z "$1" ] || container_place "$1" "$1" ''
}

# container_place SOURCE DESTINATION RIGHTS
container_place() {
	case $1$2 in
	*[!A-Za-z0-9._/+,=@%~-]*)
		fail_options "$1: letters, digits and ._/+,=@%~- only: a shell splits other paths"
		;;
	esac
	case $engine in
	podman | docker) printf '%s\n' "--volume=$1:$2$3" ;;
	*) printf '%s\n' "--bind=$1:$2$3" ;;
	esac
}

container_variable() {
	case $engine in
	charliecloud) printf '%s\n' "--set-env=$1" ;;
	*) printf '%s\n' "--env=$1" ;;
	esac
}

# container_variables DIRECTORY: where the container sees the provider.
container_variables() {
	while IFS= read -r line; do
		case $line in
		'') continue ;;
		*"$container_home"*)
			line="${line%%"$container_home"*}$1${line#*"$container_home"}"
			;;
		esac
		container_variable "$line"
	done <<-VALUES
		$values
	VALUES
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
	[ -d "$1" ] || install -d -m 0700 ${owner:+-o "$owner" -g "$owner"} "$1" ||
		fail_options "cannot make $1"
	# Anyone may have made it, as everyone can write to /dev/shm; ranks do not meet in such a place.
	[ "$(find "$1" -prune -type d -user "${owner:-$(id -u)}" ! -perm /022)" ] ||
		fail_options "$1: not a directory to which only user ${owner:-$(id -un)} can write: remove it"
}

fail_options() {
	printf '%s: %s\n' "${program:-nearmetal-guest}" "$1" >&2
	exit 1
}
