#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs as root in a bare Debian: autopkgtest installs the packages of /given and runs their own test.

set -eu
quietly() { "$@" >/tmp/log 2>&1 || { tail -n 30 /tmp/log; exit 1; }; }
quietly apt-get update
quietly apt-get install -y --no-install-recommends autopkgtest dpkg-dev
autopkgtest /given/libnearmetal-fi_*.deb /given/nearmetal_*.deb /given/nearmetal_*.dsc -- null \
	>/tmp/log 2>&1 || { cat /tmp/log; exit 1; }
sed -n '/^note: carried/p; s/^\(mpi-job\) *PASS$/passed: \1/p' /tmp/log | uniq
