#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# spark_layer.sh FOLDER IMAGE PACKAGE...: makes FOLDER/layer, a layer over a cloud image. It has
# what a machine of big-data.yaml installs at its first boot.
#
# FOLDER has `spark-packages.txt`, and `commands`, which install Spark. It runs in a mount namespace
# of its own.
set -eu
cd "$1"
image=$2
shift 2
rm -rf work new
mkdir -p lower work new root
mount -o loop,ro "$image" lower
mount -t overlay -o lowerdir=lower,upperdir=new,workdir=work layer root
mount -t proc proc root/proc
mount --rbind /dev root/dev
# The way to the archives is that of this machine.
mount --bind /etc/resolv.conf root/etc/resolv.conf
mkdir -p root/etc/ssl/certs root/etc/nearmetal
cp spark-packages.txt root/etc/nearmetal/
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin
chroot root apt-get -q -o Acquire::Retries=3 update
chroot root apt-get -q -y --no-install-recommends install "$@"
# Certificates of Java are made. Those of this machine are for pip alone.
mkdir root/run/certs
mount --bind /etc/ssl/certs root/run/certs
if [ -n "${PIP_CERT-}" ]; then export PIP_CERT="/run/certs/${PIP_CERT##*/}"; fi
unset SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE PIP_FIND_LINKS
while read -r command; do
	chroot root $command </dev/null
done <commands
umount root/run/certs
rmdir root/run/certs
rm -rf root/var/cache/apt/archives root/var/lib/apt/lists root/etc/nearmetal
umount -R root
mv new layer
