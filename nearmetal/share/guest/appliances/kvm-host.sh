#!/usr/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# libvirtd of the appliance kvm-host, in the foreground: busybox init starts it again when it ends.
# virtlogd keeps the consoles of machines meanwhile.
PATH=/usr/sbin:/usr/bin
export PATH

modprobe -a kvm_intel kvm_amd tun vhost_net 2>/dev/null
# There is no udev. QEMU runs as a user of this group.
if [ -e /dev/kvm ]; then
	chgrp kvm /dev/kvm
	chmod 0660 /dev/kvm
fi
mkdir -p /var/log/libvirt/qemu /var/lib/libvirt/dnsmasq
ulimit -l unlimited
ulimit -n 65536
pgrep -x virtlogd >/dev/null || virtlogd --daemon
exec libvirtd
