#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Enters a node, on its own cores. Lives in the cluster's namespace and is seen in every node.
#
#   agent [ssh options] NODE COMMAND...   remote shell for MPI launchers: COMMAND is for a shell
#   agent --exec NODE PROGRAM ARGS...     the program itself, without a shell
#   agent --rank PROGRAM ARGS...          within a node: runs one rank and records how it failed
#   agent --here PROGRAM ARGS...          in the launcher's place, in NEARMETAL_WORKDIR
#
# NEARMETAL_WORKDIR is the directory to start in; /tmp where a node does not have it.
PATH=$PATH:/usr/sbin:/usr/bin:/sbin:/bin
nodes=/run/nearmetal-cluster/nodes

enter() { # enter NODE SHELL-TEXT ARGS... : run the text by sh in the node
	case $1 in */* | .*) echo "nearmetal: bad node name: $1" >&2 && exit 255 ;; esac
	{ read -r pid _ <"$nodes/$1/pid" && read -r cpus <"$nodes/$1/cpus"; } 2>/dev/null || {
		echo "nearmetal: no such node, or not up: $1" >&2
		exit 255
	}
	shift
	exec taskset -c "$cpus" nsenter -t "$pid" -m -u -i -n -p -- /bin/sh -c \
		'cd "${NEARMETAL_WORKDIR:-/tmp}" 2>/dev/null || cd /tmp; '"$@"
}

case $1 in
--here)
	shift
	cd "${NEARMETAL_WORKDIR:-/tmp}" 2>/dev/null || cd /tmp || exit 255
	exec "$@"
	;;
--rank)
	# Launchers do not always pass on the exit code of the rank that failed first: records do.
	shift
	"$@"
	code=$?
	[ $code -eq 0 ] && exit 0
	echo $code >"$NEARMETAL_STATS_DIR/exit.$$"
	[ $code -gt 128 ] && {
		echo "nearmetal: rank ${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-?}} on $(hostname) ended by signal $((code - 128))" >&2
		kill -$((code - 128)) $$
	}
	exit $code
	;;
--exec)
	shift
	node=$1
	shift
	enter "$node" 'exec "$@"' sh "$@"
	;;
esac

while :; do
	case $1 in
	-[lopiFbceJ]) shift 2 ;;
	-*) shift ;;
	*) break ;;
	esac
done
node=$1
shift
enter "$node" 'exec /bin/sh -c "$1"' sh "$*"
