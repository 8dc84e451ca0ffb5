#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The remote shell of MPI launchers in a virtual machine, at the same path in every node.
#
#   agent [ssh options] NODE COMMAND...   ssh with the cluster's key; COMMAND is for a shell
#   agent --rank PROGRAM ARGS...          runs one rank and records how it failed
case $1 in
--rank)
	# Launchers do not always pass on the exit code of the rank that failed first: records do.
	shift
	"$@"
	code=$?
	[ $code -eq 0 ] && exit 0
	[ -n "$NEARMETAL_STATS_DIR" ] && echo $code >"$NEARMETAL_STATS_DIR/exit.$$"
	[ $code -gt 128 ] && {
		echo "nearmetal: rank ${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-?}} on $(hostname) ended by signal $((code - 128))" >&2
		kill -$((code - 128)) $$
	}
	exit $code
	;;
esac
exec ssh -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3 "$@"
