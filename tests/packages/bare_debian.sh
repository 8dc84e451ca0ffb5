#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs as root in a bare Debian: installs the packages of /given, uses them, and removes them again.
# Every line "passed: ..." is one that the test waits for.

set -eu
passed() { echo "passed: $*"; }
ours() {
	# A page that was read stays in man's own cache.
	find / -xdev -iname '*nearmetal*' -not -path '/proc/*' -not -path '/given/*' -not -path '/tmp/*' \
		-not -path '/var/cache/man/*' -not -path '/var/log/*' -not -path '/var/lib/systemd/*'
}
quietly() { "$@" >/tmp/log 2>&1 || { tail -n 30 /tmp/log; exit 1; }; }

[ -z "$(ours)" ]
quietly apt-get update
quietly apt-get install -y --no-install-recommends /given/libnearmetal-fi_*.deb /given/nearmetal_*.deb \
	/given/nearmetal-study_*.deb /given/nearmetal-guest_*.deb openmpi-bin libfabric-bin
passed install

fi_info -p nearmetal | grep -q '^provider: nearmetal$'
passed "libfabric finds the provider by itself"
man nearmetal-run 2>/dev/null | grep -q 'run an MPI program'
passed manual
verbs=$(nearmetal --help | sed -n 's/^    \([a-z][a-z]*\)  .*/\1/p')
[ "$(echo "$verbs" | wc -l)" -gt 20 ]
for verb in $verbs; do
	# The page of this one is in the package of the service.
	[ "$verb" = computed ] || man --path "nearmetal-$verb" >/dev/null
done
passed "a page for each verb"
nearmetal-guest --help | grep -q configure
passed "guest unit"
nearmetal study import /usr/share/doc/nearmetal/examples --draft /tmp/draft.yaml >/tmp/log 2>&1 || true
if grep Traceback /tmp/log; then cat /tmp/log; exit 1; fi

cd
nearmetal demo --blocks 1 --output results >/tmp/demo || { cat /tmp/demo; exit 1; }
grep '^hello from 2 ranks: 2 endpoints sent shm' /tmp/demo
[ -s results/report.html ]
passed "demo with Debian's Open MPI"

# The pages for a new user, word for word: root installs, and a user runs the first job.
useradd --create-home ann
(cd /given && quietly python3 follow.py 'howto-install.md#Debian packages')
su - ann -c 'python3 /given/follow.py /given/tutorial-containers.md' >/tmp/first || { cat /tmp/first; exit 1; }
userdel --remove ann 2>/tmp/log
passed "the tutorial as it stands"

spec=/usr/share/doc/nearmetal/examples/two-nodes.yaml
python3 -m venv /opt/mpi/mpich5
quietly /opt/mpi/mpich5/bin/pip install --no-deps mpich==5.0.2
export NEARMETAL_MPI_PATH=/opt/mpi
quietly nearmetal up "$spec"
program=$(echo /usr/lib/*/nearmetal/mpi_hello-mpich)
nearmetal run "$spec" --mpi mpich5 -n 2 -- "$program" >/tmp/job 2>&1 || { cat /tmp/job; exit 1; }
grep 'carried by nearmetal: 2 endpoints sent shm' /tmp/job || { cat /tmp/job; exit 1; }
passed "a job of PyPI's MPICH across two nodes"
cp "$spec" /tmp/my-spec.yaml
completion=/usr/share/bash-completion/completions/nearmetal
[ "$(cd /tmp && bash /given/complete.sh "$completion" my-s)" = my-spec.yaml ]
[ "$(cd /tmp && bash /given/complete.sh "$completion" two)" = two-nodes ]
passed "completion of a spec and of a cluster"
nearmetal down --yes "$spec" >/dev/null
unset NEARMETAL_MPI_PATH

share=$(nearmetal schema | sed -n 's,^directory: \(.*\)/schema/result$,\1,p')
[ -s "$share/prometheus/alerts.yaml" ]
[ -s "$share/reframe/nearmetal_checks.py" ]
[ -s "$share/heat/cluster.yaml" ]
nearmetal schema study judge | grep -q '"verdict"'
quietly apt-get install -y --no-install-recommends python3-prometheus-client
nearmetal metrics --once | grep -q '^nearmetal_reading_complete'
passed "schemas and metrics"

# What `nearmetal-guest configure` writes in a machine with a seed, by its own functions.
sed '/^case \${1-} in$/,$d' /usr/bin/nearmetal-guest >/tmp/functions
(
	. /tmp/functions
	prepare
	echo eth0 >"$run/interface"
	names=' n1'
	environment_write
	keys_configure
)
written='/etc/nearmetal/environment /etc/profile.d/nearmetal.sh
	/etc/ssh/sshd_config.d/10-nearmetal.conf /etc/ssh/ssh_config.d/nearmetal.conf'
for file in $written; do [ -s "$file" ] || { echo "not written: $file"; exit 1; }; done
# The directory is not the guest's alone.
touch /etc/nearmetal/seed.json /etc/nearmetal/slurm.toml

rm -rf results /tmp/draft.yaml /tmp/my-spec.yaml /opt/mpi
quietly apt-get purge -y nearmetal nearmetal-study nearmetal-guest libnearmetal-fi
rm -rf .local/state/nearmetal .cache/nearmetal
rm /etc/nearmetal/slurm.toml
rmdir /etc/nearmetal
left=$(ours)
[ -z "$left" ] || { echo "left: $left"; exit 1; }
passed "purge leaves nothing"
