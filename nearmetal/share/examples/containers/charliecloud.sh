#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Two ranks of Open MPI 5 in two containers of Charliecloud, which meet in shared memory.
#
# usage: charliecloud.sh IMAGE MPIRUN PROGRAM [ARGS...]
# IMAGE is an image directory of ch-convert(1) or ch-image(1). MPIRUN is Open MPI's mpirun of this
# machine, and the image holds an MPI of the same version. ENGINE_OPTIONS: further options.
# CONTAINER_OPTIONS: options for `nearmetal container`, for example --fabric=ucx.
set -eu

image=$1 mpirun=$2
shift 2
meeting=$(mktemp -d /dev/shm/nearmetal-job-XXXXXX)
trap 'rm -rf "$meeting"' EXIT
trap 'exit 130' INT TERM

# Each rank gets a container of its own. All of them see the /dev/shm of this machine.
options=$(nearmetal container --engine charliecloud ${CONTAINER_OPTIONS-} "$meeting")
"$mpirun" -n 2 ch-run $options ${ENGINE_OPTIONS-} "$image" -- "$@"
