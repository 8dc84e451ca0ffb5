#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Brings a Debian 12 machine to the point where nearmetal runs and its tests pass. Everything but
# the Debian packages goes under build/. Safe to run again at any time, and after being killed.
#
#   tools/setup/setup.sh            everything
#   tools/setup/setup.sh --no-build everything but the C build and the MPI programs
#   tools/setup/setup.sh --vm       everything, and what virtual machines need
#   tools/setup/setup.sh --vsphere  everything, and the simulated vCenter of the tests
#   tools/setup/setup.sh --openstack  everything, and the OpenStack services of the tests
#   tools/setup/setup.sh --study    everything, and a browser and benchmarks for tests of studies
#   tools/setup/setup.sh --slurm    everything, and the daemons of Slurm
#   tools/setup/setup.sh --containers  everything, and the container engines of the tests
#   tools/setup/setup.sh --apps     everything, and promtool, ReFrame and large applications
#                                   for the long tests (1.1 GB)
#   tools/setup/setup.sh --packages everything, and what builds and tests packages
#   tools/setup/setup.sh --site     everything, and what builds the documentation site
# Options may stand together.

set -euo pipefail
export LC_ALL=C.UTF-8
unset PYTHONPATH PYTHONHOME

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
here=$root/tools/setup
cd -- "$root"

. "$here/lib.sh"
. "$here/debian.sh"
. "$here/python.sh"
. "$here/libfabric.sh"
. "$here/mpi.sh"
. "$here/ucx.sh"
. "$here/programs.sh"
. "$here/vm.sh"
. "$here/libvirt.sh"
. "$here/vsphere.sh"
. "$here/openstack.sh"
. "$here/packages.sh"
. "$here/promtool.sh"
. "$here/site.sh"
. "$here/reframe.sh"

usage() { sed -n '4,/^# Options may/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

with_build=yes
with_vm=no
with_vsphere=no
with_openstack=no
with_packages=no
with_site=no
more_packages=()
for option in "$@"; do
	case $option in
	--no-build) with_build=no ;;
	--vm) with_vm=yes ;;
	--vsphere) with_vsphere=yes ;;
	--openstack) with_openstack=yes ;;
	--study | --slurm | --apps | --containers) more_packages+=("${option#--}") ;;
	--packages) with_packages=yes ;;
	--site) with_site=yes ;;
	-h | --help) usage && exit 0 ;;
	*) note "setup.sh: unknown option '$option'" && usage >&2 && exit 2 ;;
	esac
done

# Kills the step in progress with everything it started, so Ctrl-C leaves no download behind.
child=
stop_child() {
	[[ -n $child ]] || return 0
	kill -TERM -- "-$child" 2>/dev/null || kill -TERM "$child" 2>/dev/null || true
}
trap 'stop_child; note ""; note "nearmetal set-up: interrupted; run it again to continue."; exit 130' INT
trap 'stop_child; exit 143' TERM

mkdir -p -- "$logs" "$stamps"

# One set-up at a time in one checkout: a second one waits, then finds everything ready.
exec 9>"$build/.setup.lock"
if ! flock -n 9; then
	note "Another set-up is running in this checkout; waiting for it to end."
	flock 9
fi
: >"$logs/notes"
# Not before: whoever had the lock removes it when it ends.
rm -rf -- "$scratch"
mkdir -p -- "$scratch"

set -m # each step is a process group of its own, see stop_child
step_total=10
[[ $with_build == yes ]] || step_total=8
[[ $with_vm == no ]] || step_total=$((step_total + 2))
[[ $with_vsphere == no ]] || step_total=$((step_total + 2))
[[ $with_openstack == no ]] || step_total=$((step_total + 4))
[[ $with_openstack == no ]] || ! has_libvirt || step_total=$((step_total + 1))
[[ $with_packages == no ]] || step_total=$((step_total + 2))
[[ $with_site == no ]] || step_total=$((step_total + 1))
step_total=$((step_total + ${#more_packages[@]}))
[[ " ${more_packages[*]} " != *" apps "* ]] || step_total=$((step_total + 2))

debian_step
python_step
libfabric_step
mpi_steps
ucx_step
if [[ $with_build == yes ]]; then
	always c-build "C build" "$here/c_build.sh" normal
	always mpi-programs "MPI programs" build_programs
fi
if [[ $with_vm == yes ]]; then
	vm_step
	libvirt_step
fi
if [[ $with_vsphere == yes ]]; then
	vsphere_steps
fi
if [[ $with_openstack == yes ]]; then
	openstack_steps
fi
if [[ $with_packages == yes ]]; then
	packages_step packages "Packages for packages" "$here/build-packages.txt" install_packages
	zig_step
fi
if [[ $with_site == yes ]]; then
	site_step
fi
if [[ " ${more_packages[*]} " == *" apps "* ]]; then
	promtool_step
	reframe_step
fi
for list in "${more_packages[@]}"; do
	packages_step "$list" "Packages for --$list" "$here/$list-packages.txt" install_packages
done
rm -rf -- "$scratch"
