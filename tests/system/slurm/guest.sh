#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# guest.sh ADDRESS: as root in a virtual machine of the image that is built `--with slurm`, with the package
# of the plugin in /opt/nm: a Slurm of one node that keeps jobs within their limits by cgroup v2.

set -eu
address=$1
name=$(hostname)

# The image keeps documents out.
dpkg --path-include="/usr/share/doc/nearmetal-slurm/*" --install /opt/nm/nearmetal-slurm_*.deb
printf '#!/bin/sh\nPYTHONPATH=/opt/nm exec python3 -m nearmetal "$@"\n' >/usr/bin/nearmetal
chmod 755 /usr/bin/nearmetal

grep -q ' /sys/fs/cgroup ' /proc/mounts || mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /etc/slurm /etc/nearmetal /var/log/slurm /var/spool/slurmctld /var/spool/slurmd /run/munge /etc/munge
cat >/etc/slurm/slurm.conf <<CONF
ClusterName=guest
SlurmctldHost=$name($address)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/cgroup
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=vf
ReturnToService=2
PrologFlags=Alloc
PrologEpilogTimeout=300
MessageTimeout=60
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
PlugStackConfig=/etc/slurm/plugstack.conf
NodeName=$name NodeAddr=$address CPUs=$(nproc) RealMemory=1400 Gres=vf:7 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP DefMemPerNode=200 OverSubscribe=NO
CONF
cat >/etc/slurm/cgroup.conf <<CONF
CgroupPlugin=cgroup/v2
IgnoreSystemd=yes
EnableControllers=yes
ConstrainCores=yes
ConstrainRAMSpace=yes
ConstrainSwapSpace=yes
CONF
sed 's/^NodeName=[^ ]*/NodeName='"$name"'/' /usr/share/doc/nearmetal-slurm/examples/gres.conf >/etc/slurm/gres.conf
sed 's/ launcher=[^ ]*//' /usr/share/doc/nearmetal-slurm/examples/plugstack.conf >/etc/slurm/plugstack.conf
cat >/etc/nearmetal/slurm.toml <<CONF
[defaults]
scratch = "512M"
[limits]
vf = "7"
segment = "1G"
vms-per-node = "1"
CONF
(umask 077 && head -c 64 /dev/urandom >/etc/nearmetal/slurm.key)
# As udev would.
modprobe -a tun kvm_amd
chmod 666 /dev/net/tun /dev/kvm

[ -s /etc/munge/munge.key ] || dd if=/dev/urandom of=/etc/munge/munge.key bs=1024 count=1 2>/dev/null
mkdir -p /var/log/munge /var/lib/munge
chown -R munge: /run/munge /etc/munge /var/log/munge /var/lib/munge
chmod 400 /etc/munge/munge.key
chmod 755 /run/munge
chmod 700 /etc/munge /var/log/munge /var/lib/munge
setpriv --reuid munge --regid munge --clear-groups munged
slurmctld
slurmd
