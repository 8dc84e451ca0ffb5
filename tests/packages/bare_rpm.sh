#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs as root in a bare Debian 12, which has the Python of the RPMs: installs the RPMs of /given by
# rpm, uses them, and removes them again. RPM knows no package of Debian, so --nodeps. Every line
# "passed: ..." is one that the test waits for.

set -eu
passed() { echo "passed: $*"; }
files() {
	find / -xdev \( -path /proc -o -path /tmp -o -path /root -o -path /var/cache/man -o -path /var/lib/rpm \) \
		-prune -o -print | sort
}
quietly() { "$@" >/tmp/log 2>&1 || { tail -n 30 /tmp/log; exit 1; }; }

quietly apt-get update
quietly apt-get install -y --no-install-recommends rpm openmpi-bin libfabric-bin python3 jq
mkdir -p /usr/share/licenses # of the package filesystem of RHEL
before=$(files)
quietly rpm --install --nodeps /given/*.rpm
[ "$(rpm --query --all | wc -l)" = 4 ]
quietly rpm --verify --nodeps --all
[ ! -s /tmp/log ]
passed install

FI_PROVIDER_PATH=/usr/lib64/libfabric fi_info -p nearmetal | grep -q '^provider: nearmetal$'
passed "the directory of RHEL's libfabric has the provider"
nearmetal-info >/dev/null
nearmetal-segment --help >/dev/null
nearmetal-guest --help | grep -q configure
man nearmetal-run 2>/dev/null | grep -q 'run an MPI program'
[ -s /usr/share/zsh/site-functions/_nearmetal ]
passed "tools, guest unit, manual"
cd
nearmetal demo --blocks 1 --output results >/tmp/demo || { cat /tmp/demo; exit 1; }
grep '^hello from 2 ranks: 2 endpoints sent shm' /tmp/demo
passed "demo"
nearmetal study import /usr/lib/nearmetal/python/nearmetal/share/examples --draft /tmp/draft.yaml \
	>/tmp/log 2>&1 || true
if grep Traceback /tmp/log; then cat /tmp/log; exit 1; fi
quietly rpm --verify --nodeps --all
[ ! -s /tmp/log ]
passed "use changes no file"

rm -rf results .local/state/nearmetal .cache/nearmetal
quietly rpm --erase --nodeps nearmetal nearmetal-study
quietly rpm --erase --nodeps nearmetal-guest libnearmetal-fi
[ -z "$(rpm --query --all)" ]
echo "$before" >/tmp/before
files | diff /tmp/before -
passed "erase leaves nothing"
