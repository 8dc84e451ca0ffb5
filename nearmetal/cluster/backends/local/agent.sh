# SPDX-License-Identifier: Apache-2.0
# Enters a node, on its own cores. Lives in the cluster's namespace and is seen in every node.
#
#   agent [ssh options] NODE COMMAND...   remote shell for MPI launchers: COMMAND is for a shell
#   agent --exec NODE PROGRAM ARGS...     the program itself, without a shell
#   agent --rank PROGRAM ARGS...          within a node: runs one rank and records how it ended
#   agent --here PROGRAM ARGS...          in the launcher's place, in NEARMETAL_WORKDIR
#
# NEARMETAL_WORKDIR is the directory to start in; /tmp where a node does not have it. The launcher
# of a job (NEARMETAL_JOB=job-...) enters the place that job.py made. It is confined there, and its
# remote shells ask for commands in nodes through a door.
PATH=$PATH:/usr/sbin:/usr/bin:/sbin:/bin
cluster=/run/nearmetal-cluster
start='cd "${NEARMETAL_WORKDIR:-/tmp}" 2>/dev/null || cd /tmp; '

find_node() { # find_node NODE : set pid and cpus of the node
	case $1 in */* | .*) echo "nearmetal: bad node name: $1" >&2 && exit 255 ;; esac
	place=$cluster/nodes/$1/pid
	[ ! -S $cluster/door ] || return 0 # the supervisor of the job finds it
	{ read -r pid begin <"$place" && read -r cpus <"$cluster/nodes/$1/cpus"; } 2>/dev/null || {
		echo "nearmetal: no such node, or not up: $1" >&2
		exit 255
	}
}

enter() { # enter SHELL-TEXT ARGS... : become the text run by sh in the found node, confined
	exec taskset -c "$cpus" $cluster/python -I -S $cluster/confine.py "$pid" "$begin" \
		/bin/sh -c "$start$@"
}

# TMPDIR of a job is one directory in all places. The MPI's own processes get /tmp, which is that of
# the job in one node: they name files after their node and pid, and several nodes may have the same.
# It is written in its own way, because a user may set TMPDIR=/tmp.
job_tmp=/run/job
own_tmp=/tmp/.

case $1 in
--here)
	shift
	case $NEARMETAL_JOB in */*) ;; job-*)
		if { read -r pid begin <"$cluster/jobs/$NEARMETAL_JOB/.launcher"; } 2>/dev/null; then
			[ "$TMPDIR" != $job_tmp ] || TMPDIR=$own_tmp
			exec $cluster/python -I -S $cluster/confine.py "$pid" "$begin" \
				/bin/sh -c "$start"'exec "$@"' sh "$@"
		fi
		;;
	esac
	cd "${NEARMETAL_WORKDIR:-/tmp}" 2>/dev/null || cd /tmp || exit 255
	exec "$@"
	;;
--rank)
	shift
	[ "$TMPDIR" != $own_tmp ] || TMPDIR=$job_tmp
	run_rank "$@"
	;;
--exec)
	shift
	find_node "$1"
	shift
	enter 'exec "$@"' sh "$@"
	;;
esac

reach() {
	[ "$TMPDIR" != $job_tmp ] || TMPDIR=$own_tmp
	[ ! -S $cluster/door ] || exec $cluster/python -I -S $cluster/confine.py door "$node" "$1"
	enter 'exec /bin/sh -c "$1"' sh "$1"
}

remote_shell "$@"
