#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Two ranks of Open MPI 5 in two containers of Podman or Docker, which meet in shared memory.
#
# usage: two-containers.sh podman|docker IMAGE MPIRUN PROGRAM [ARGS...]
# MPIRUN is Open MPI's mpirun of this machine; the image holds the same version at the same path,
# and PROGRAM. ENGINE_OPTIONS: further options for `run`, for example --volume=/home:/home.
# CONTAINER_OPTIONS: options for `nearmetal container`, for example --fabric=ucx.
set -eu

engine=$1 image=$2 mpirun=$3
shift 3
first=near1-$$ second=near2-$$
meeting=$(mktemp -d /dev/shm/nearmetal-job-XXXXXX)
agent=$(mktemp)

finish() {
	"$engine" rm --force "$first" "$second" >/dev/null 2>&1 || :
	rm -rf "$meeting" "$agent"
}
trap finish EXIT
trap 'exit 130' INT TERM

# The provider, the variables of the MPI, and the directory where both containers meet.
options=$(nearmetal container --engine "$engine" ${CONTAINER_OPTIONS-} "$meeting")

for name in "$first" "$second"; do
	"$engine" run --detach --name "$name" --hostname "$name" $options ${ENGINE_OPTIONS-} \
		"$image" sleep infinity >/dev/null
done

# mpirun starts one daemon per container, by this program in place of ssh.
cat >"$agent" <<AGENT
#!/bin/sh
host=\$1
shift
exec $engine exec "\$host" sh -c "\$*"
AGENT
chmod 700 "$agent"

"$mpirun" --prtemca plm ssh --prtemca plm_ssh_agent "$agent" --prtemca plm_ssh_no_tree_spawn 1 \
	--bind-to none --host "$first,$second" --map-by node -n 2 "$@"
