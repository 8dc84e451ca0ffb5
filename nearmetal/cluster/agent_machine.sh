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
	# Files of the MPI itself go with the job, also if its process there is killed.
	exec ssh -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3 -- "$node" \
		"[ ! -d '$TMPDIR' ] || export TMPDIR='$TMPDIR'; $1"
}

remote_shell "$@"
