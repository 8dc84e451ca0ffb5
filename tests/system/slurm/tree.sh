#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# tree.sh SQUASHFS DIR REPOSITORY COMMAND...: runs COMMAND in the root file system of a built image, with
# DIR and, read-only, REPOSITORY at their own paths. In a mount namespace of its own, as whose root the
# tree then stands, so that whoever enters the namespace is in it.

set -euo pipefail
squashfs=$1 dir=$2 repository=$3
shift 3

tree=$dir/tree
mkdir -p "$tree"
mount -t tmpfs -o mode=755 tmpfs "$tree"
mkdir "$tree"/{lower,upper,work,root}
mount -t squashfs -o ro,loop "$squashfs" "$tree/lower"
mount -t overlay -o "lowerdir=$tree/lower,upperdir=$tree/upper,workdir=$tree/work" overlay "$tree/root"
cd "$tree/root"
mkdir -p dev proc sys old ".$dir" ".$repository"
mount --rbind /dev dev
mount --rbind /sys sys
mount -t proc proc proc
mount --bind "$dir" ".$dir"
mount --bind "$repository" ".$repository"
mount -o remount,bind,ro ".$repository"
# What runs from the checkout, with the Python of the tree, and its Open MPI.
mkdir -p opt/mpi
ln -s /usr opt/mpi/openmpi5
compiled=/opt/compiled
printf '#!/bin/sh\nexport PYTHONPYCACHEPREFIX=%s PYTHONPATH=%s NEARMETAL_MPI_PATH=/opt/mpi\n%s\n' \
	"$compiled" "$repository" 'exec python3 -m nearmetal "$@"' >usr/bin/nearmetal
chmod 755 usr/bin/nearmetal
pivot_root . old
umount --lazy /old
rmdir /old
# Once, as its first start is long: by a prolog, of which Slurm waits for the end.
nearmetal slurm --help >/dev/null
for verb in launch reclaim status task; do
	nearmetal slurm "$verb" --help >/dev/null
done
exec "$@"
