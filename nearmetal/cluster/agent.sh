#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The first part of the agent of every backend: functions for ranks and for the launcher's side. The
# second part defines `find_node NODE JOB`, which ends the agent if the node is not up, and `reach
# COMMAND`, which becomes a command for a shell in $node.

run_rank() { # run_rank PROGRAM ARGS... : run one rank and record how it ended
	# Launchers do not always pass on the exit code of the rank that failed first: records do. A
	# record without a code is that of a rank that was killed together with this shell.
	read -r host </proc/sys/kernel/hostname || host=unknown
	rank=${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-?}}
	record=$NEARMETAL_STATS_DIR/exit.$rank.$host.$$
	[ -d "$NEARMETAL_STATS_DIR" ] || record=/dev/null
	echo >"$record"
	trap : HUP INT TERM
	"$@"
	code=$?
	echo $code >"$record"
	trap - HUP INT TERM
	[ $code -gt 128 ] && {
		echo "nearmetal: rank $rank on $host ended by signal $((code - 128))" >&2
		kill -$((code - 128)) $$
	}
	exit $code
}

started() { cut -d' ' -f22 "/proc/$1/stat" 2>/dev/null; } # when a process started

end_launcher() { # end_launcher NODE CODE : the MPI's process in a node has failed
	# Some launchers wait without end for a process of their own that was killed. They get a moment
	# to notice. The watch has no stream of the launcher, which would wait for its end.
	[ "$2" -gt 128 ] && [ -d "$NEARMETAL_STATS_DIR" ] && echo "$2" >"$NEARMETAL_STATS_DIR/lost.$1"
	launcher=$PPID since=$(started $PPID)
	[ "$launcher" -gt 1 ] && [ -n "$since" ] || return
	(
		sleep 3
		for signal in TERM KILL; do
			[ "$(started "$launcher")" = "$since" ] || exit
			kill -$signal "$launcher"
			sleep 2
		done
	) </dev/null >/dev/null 2>&1 &
}

remote_shell() { # remote_shell [ssh options] NODE COMMAND... : as launchers call it
	while :; do
		case $1 in
		-[lopiFbceJ]) shift 2 ;;
		-*) shift ;;
		*) break ;;
		esac
	done
	node=$1
	shift
	find_node "$node" "$NEARMETAL_JOB"
	(reach "$*")
	code=$?
	[ $code -eq 0 ] || end_launcher "$node" $code
	exit $code
}
