# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What every set-up step uses: progress lines, logs, stamps. Sourced by setup.sh.
#
# A step is a bash function that runs in a subshell with errexit, its output in build/log/NAME.log.
# It is done when build/.stamps/NAME holds the hash of its inputs and its result is still there. A
# step builds beside its destination and renames at the end (or is removed and built anew), and
# its stamp is written last, so a set-up killed at any moment is continued by the next one. A step
# inherits the lock (descriptor 9), so one that outlives a killed set-up is waited for, not disturbed.

build=$root/build
logs=$build/log
stamps=$build/.stamps
scratch=$build/.tmp
step_nr=0
step_total=0

note() { printf '%s\n' "$*" >&2; }

die() {
	note "nearmetal set-up: $1"
	shift
	local line
	for line in "$@"; do note "  $line"; done
	exit 1
}

# A loud note out of a step: its own output goes to a log, the person reads this one.
loud() { printf '      note: %s\n' "$*" | tee -a "$build/log/notes" >&3; }

# hash_of TEXT... FILE...: a name that is a file counts with its bytes, anything else as text.
hash_of() {
	local item
	for item in "$@"; do
		if [[ -f $item ]]; then cat -- "$item"; else printf '%s\n' "$item"; fi
	done | sha256sum | cut -d' ' -f1
}

# entries FILE: the lines of a list without comments and blank lines.
entries() { sed -e 's/[[:space:]]*#.*//' -e '/^[[:space:]]*$/d' "$1"; }

show_failure() {
	local name=$1 status=$2 log=$logs/$1.log
	note ""
	note "nearmetal set-up: step '$name' failed (exit status $status)."
	grep -h '^failed command: ' "$log" | head -n 1 >&2 || true
	note "Last lines of ${log#"$root"/}:"
	tail -n 25 -- "$log" | sed 's/^/  | /' >&2
	note "Nothing has to be cleaned up: mend the cause and run the same command again."
}

# watch_child PID LABEL START: shows the seconds while a person watches, returns the child's status.
watch_child() {
	local child=$1 label=$2 start=$3 status=0
	if [[ -t 1 ]]; then
		while kill -0 "$child" 2>/dev/null; do
			printf '\r%s %d s ' "$label" $((SECONDS - start))
			sleep 0.5
		done
	fi
	wait "$child" || status=$?
	return "$status"
}

# run_logged NAME TITLE FUNCTION [ARG...]: runs a step and prints its progress line.
run_logged() {
	local name=$1 title=$2 start=$SECONDS status=0
	shift 2
	local label="[$step_nr/$step_total] $title ..."
	[[ -t 1 ]] || printf '%s' "$label"
	(
		set -Eeuo pipefail
		trap 'echo "failed command: $BASH_COMMAND (${BASH_SOURCE[0]##*/}:$LINENO)" >&2' ERR
		"$@"
	) 3>&1 >"$logs/$name.log" 2>&1 </dev/null &
	child=$!
	watch_child "$child" "$label" "$start" || status=$?
	child=
	if ((status)); then
		[[ -t 1 ]] && printf '\r%s' "$label"
		printf ' FAILED after %d s\n' $((SECONDS - start))
		show_failure "$name" "$status"
		exit 1
	fi
	[[ -t 1 ]] && printf '\r%s' "$label"
	printf ' %d s\n' $((SECONDS - start))
}

# step NAME TITLE RESULT KEY FUNCTION [ARG...]
# RESULT is a path that must exist for the step to count as done; KEY is the hash of its inputs.
step() {
	local name=$1 title=$2 result=$3 key=$4
	shift 4
	step_nr=$((step_nr + 1))
	if [[ -e $result && -f $stamps/$name && $(<"$stamps/$name") == "$key" ]]; then
		printf '[%d/%d] %s ... ready\n' "$step_nr" "$step_total" "$title"
		return 0
	fi
	rm -f -- "$stamps/$name"
	run_logged "$name" "$title" stamped "$name" "$key" "$@"
}

# stamped NAME KEY FUNCTION [ARG...]: writes the stamp in the step's own process, so that a step
# that outlives a killed set-up still counts.
stamped() {
	local name=$1 key=$2
	shift 2
	"$@"
	printf '%s\n' "$key" >"$scratch/stamp.$name"
	mv -- "$scratch/stamp.$name" "$stamps/$name"
}

# always NAME TITLE FUNCTION [ARG...]: a step whose own tool knows what is up to date (ninja).
always() {
	step_nr=$((step_nr + 1))
	run_logged "$@"
}

# replace_dir FRESH DESTINATION: puts a finished directory in its place.
replace_dir() {
	mkdir -p -- "$(dirname -- "$2")"
	if [[ -e $2 ]]; then
		mv -- "$2" "$scratch/old.$$.${2##*/}"
	fi
	mv -- "$1" "$2"
	rm -rf -- "$scratch/old.$$.${2##*/}"
}
