# SPDX-License-Identifier: Apache-2.0
# The remote shell of MPI launchers in a virtual machine, at the same path in every node.
#
#   agent [ssh options] NODE COMMAND...   ssh with the cluster's key; COMMAND is for a shell
#   agent --rank PROGRAM ARGS...          runs one rank and records how it ended
case $1 in
--rank)
	shift
	run_rank "$@"
	;;
esac

find_node() { :; } # ssh says so

reach() {
	# A machine that moves may stand still. Its peers wait for NEARMETAL_NET_TIMEOUT_MS and a third,
	# and name that limit; so ssh, which would end the job without a reason, waits for five thirds.
	case $NEARMETAL_NET_TIMEOUT_MS in
	'' | ? | ?? | ??? | 0* | *[!0-9]* | ????????*) limit=30000 ;;
	*) limit=$NEARMETAL_NET_TIMEOUT_MS ;;
	esac
	interval=$(((limit + 2999) / 3000))
	# Files of the MPI itself go with the job, also if its process there is killed.
	ssh -o BatchMode=yes -o "ServerAliveInterval=$interval" -o ServerAliveCountMax=4 -- "$node" \
		"[ ! -d '$TMPDIR' ] || export TMPDIR='$TMPDIR'; $1"
	code=$?
	[ $code -ne 255 ] ||
		echo "nearmetal: ssh has no connection to node $node any more; a node that does not answer" \
			"for $((5 * interval)) s counts as lost (five thirds of NEARMETAL_NET_TIMEOUT_MS)" >&2
	exit $code
}

remote_shell "$@"
