#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds a Debian package of the Slurm plugin for the Slurm whose headers are on this machine: Slurm
# refuses a plugin that was built for another version of it.
#
#   tools/package/slurm.sh FOLDER               FOLDER/nearmetal-slurm_VERSION_ARCH.deb
#   tools/package/slurm.sh FOLDER --depends LIST   for a Slurm whose packages are not named as Debian's
#
# Needs cc, meson, ninja, pkg-config, dpkg-deb and Slurm's headers (libslurm-dev); no libfabric. Prints the path
# of the package. LIST is as in a Depends line; without it: slurm-client of exactly that release.

set -euo pipefail
export LC_ALL=C.UTF-8

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)

fail() {
	printf 'tools/package/slurm.sh: %s\n' "$*" >&2
	exit 1
}

usage() {
	sed -n '4,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
	exit 2
}

out='' depends=''
while (($#)); do
	case $1 in
	--depends) [[ ${2-} ]] && depends=$2 && shift || usage ;;
	-*) usage ;;
	*) [[ -z $out ]] && out=$1 || usage ;;
	esac
	shift
done
[[ $out ]] || usage

for program in "${CC:-cc}" meson ninja pkg-config dpkg-deb; do
	command -v "$program" >/dev/null || fail "no $program: on Debian, apt-get install gcc meson ninja-build pkgconf dpkg"
done

# The number that Slurm compares: two digits each, in hexadecimal, of 24.11.5.
number=$(printf '#include <slurm/slurm_version.h>\nNUMBER SLURM_VERSION_NUMBER\n' |
	"${CC:-cc}" ${CFLAGS-} -E -P - 2>/dev/null | sed -n 's/^NUMBER \(0x[0-9a-f]\{6\}\)$/\1/p') || true
[[ $number ]] || fail "no headers of Slurm, or ones that do not say their version: install libslurm-dev"
release=$(printf '%d.%02d.%d' $((number >> 16 & 255)) $((number >> 8 & 255)) $((number & 255)))
next=$(printf '%d.%02d.%d' $((number >> 16 & 255)) $((number >> 8 & 255)) $(((number & 255) + 1)))
depends=${depends:-"slurm-client (>= $release), slurm-client (<< $next~)"}

mkdir -p -- "$out"
out=$(cd -- "$out" && pwd -P)
work=$(mktemp -d -- "$out/.nearmetal-slurm.XXXXXX")
trap 'rm -rf -- "$work"' EXIT

# Where Debian has libraries, and others have not; Meson alone knows it only with dpkg-dev.
libdir=lib/$("${CC:-cc}" -print-multiarch 2>/dev/null || true)
# No byte may depend on the place of the build.
export CFLAGS="${CFLAGS-} -ffile-prefix-map=$work=. -ffile-prefix-map=$root=. -ffile-prefix-map=$(realpath --relative-to="$work/build" "$root")=."
meson setup --prefix /usr --libdir "${libdir%/}" -Dspank=enabled -Dprovider=disabled "$work/build" "$root" >"$work/log" 2>&1 &&
	ninja -C "$work/build" src/spank/spank_nearmetal.so >>"$work/log" 2>&1 &&
	meson install -C "$work/build" --no-rebuild --strip --tags slurm --destdir "$work/package" >>"$work/log" 2>&1 ||
	{
		tail -n 20 "$work/log" >&2
		fail "the plugin does not build for Slurm $release"
	}

documents=$work/package/usr/share/doc/nearmetal-slurm
mkdir -p "$work/package/DEBIAN" "$documents/examples"
cp "$root/tools/package/debian/copyright" "$documents/copyright"
cp "$root/nearmetal/share/man/spank_nearmetal.md" "$root/nearmetal/share/man/nearmetal-slurm.md" "$documents/"
cp "$root"/nearmetal/share/examples/slurm/* "$documents/examples/"
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/nearmetal/__init__.py")
version=${version/.dev/~dev}
architecture=$(dpkg-deb --version >/dev/null && dpkg --print-architecture)
package=$out/nearmetal-slurm_$version+slurm${release}_$architecture.deb
cat >"$work/package/DEBIAN/control" <<CONTROL
Package: nearmetal-slurm
Version: $version+slurm$release
Architecture: $architecture
Section: net
Priority: optional
Maintainer: ${PACKAGE_MAINTAINER:-The nearmetal authors <nearmetal@example.org>}
Depends: libc6, $depends
Recommends: nftables
Description: nearmetal's plugin for Slurm $release
 Jobs that ask for it run in containers as nodes, with a segment directory per
 job and host. The plugin, the watchdog's systemd units, and examples; nearmetal
 itself, which the plugin starts on nodes, is installed apart.
CONTROL
gzip -9n >"$documents/changelog.gz" <<CHANGELOG
nearmetal-slurm ($version+slurm$release) unstable; urgency=medium

  * See CHANGELOG.md of the source.

 -- ${PACKAGE_MAINTAINER:-The nearmetal authors <nearmetal@example.org>}  $(date -u -R ${SOURCE_DATE_EPOCH:+-d "@$SOURCE_DATE_EPOCH"})
CHANGELOG
chmod -R u=rwX,go=rX "$work/package"
dpkg-deb --root-owner-group --build "$work/package" "$work/package.deb" >>"$work/log" || fail "$(tail -n 3 "$work/log")"
mv -- "$work/package.deb" "$package"
printf '%s\n' "$package"
