#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs as root in a bare Debian: an ordinary user installs the wheel of /given, and uses it. Every line
# "passed: ..." is one that the test waits for.

set -eu
if [ "$(id -u)" = 0 ]; then
	apt-get update >/dev/null
	apt-get install -y --no-install-recommends gcc libc6-dev >/dev/null 2>&1
	useradd --create-home --home-dir /srv/ann ann
	exec setpriv --reuid ann --regid ann --init-groups env HOME=/srv/ann USER=ann "$0"
fi
passed() { echo "passed: $*"; }
cd

python3 -m venv venv
. venv/bin/activate
pip install --quiet /given/*.whl mpich==5.0.2
passed install
nearmetal-info >/dev/null
nearmetal-segment --help >/dev/null
passed tools
man nearmetal-run 2>/dev/null | grep -q 'run an MPI program'
passed manual

nearmetal demo --blocks 1 --output results >demo || { cat demo; exit 1; }
grep '^hello from 2 ranks: 2 endpoints sent shm' demo
passed "demo with PyPI's MPICH"

share=$(python -c 'from nearmetal.core.resources import share; print(share())')
nearmetal completion bash >completion
nearmetal up "$share/examples/two-nodes.yaml" >log 2>&1 || { cat log; exit 1; }
nearmetal run two-nodes --mpi mpich5 -n 2 -- "$share/built/mpi_hello-mpich" >job 2>&1 || { cat job; exit 1; }
grep 'carried by nearmetal: 2 endpoints sent shm' job || { cat job; exit 1; }
passed "a job of PyPI's MPICH across two nodes"
[ "$(bash /given/complete.sh completion two)" = two-nodes ]
nearmetal down --yes two-nodes >/dev/null
passed "completion of a cluster"

deactivate
(cd /given && python3 follow.py howto-install.md#Wheel tutorial-containers.md) >log || { cat log; exit 1; }
passed "the tutorial as it stands"
. venv/bin/activate

# The programs that measure, and the parts of an image, are in the wheel.
nearmetal tune --rounds 1 --output tuning >/dev/null
passed tune
nearmetal image list >/dev/null || [ $? = 4 ]
python -c 'from nearmetal.image import parts_here; assert len(parts_here().items) > 15'
passed "parts of an image"
for given in 'vms-two libvirt' 'vsphere-sriov vsphere'; do
	status=0
	nearmetal plan "$share/examples/${given% *}.yaml" 2>error || status=$?
	[ "$status" = 1 ]
	grep "pip install 'nearmetal\[${given#* }\]'" error || { cat error; exit 1; }
done
passed "a missing extra is named"

pip install --quiet "$(echo /given/*.whl)[metrics,study]"
nearmetal metrics --once | grep -q '^nearmetal_reading_complete'
python -c 'from nearmetal import notebook; print(notebook.open_study)' >/dev/null
passed "extras: metrics, study, the API of notebooks"

pip uninstall --quiet --yes nearmetal
left=$(find venv -iname '*nearmetal*')
[ -z "$left" ] || { echo "left: $left"; exit 1; }
passed "uninstall leaves nothing"
