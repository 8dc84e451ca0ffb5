#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds every package from the files that git tracks here:
#
#   tools/package/packages.sh FOLDER [source] [wheel] [debian] [slurm] [rpm] [spack]     default: all
#
#   FOLDER/nearmetal-VERSION.tar.gz                      the source
#   FOLDER/nearmetal-VERSION-py3-none-manylinux...whl    for Linux with glibc 2.28 or newer
#   FOLDER/*.deb                                         for Debian 12 and 13
#   FOLDER/nearmetal_VERSION.dsc, .tar.xz                their source, with the test for autopkgtest
#   FOLDER/*.rpm                                         with the paths of RHEL 9
#   FOLDER/nearmetal-spack-VERSION.tar.gz                a repository of recipes for Spack
#   FOLDER/nearmetal-VERSION.spdx.json, SHA256SUMS       what is inside, and the digests
#
# Equal files and tools give equal bytes, whenever and wherever they are built. Needs what
# `tools/setup/setup.sh --packages` installs. Replaced for tests: BUILD, the build/ of set-up; and
# ZIG_PYTHON, a Python with the packages of tools/setup/requirements-packages.txt. For a site:
# PACKAGE_MAINTAINER, the name and address in Debian packages.

set -euo pipefail
export LC_ALL=C.UTF-8
umask 022

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
build=${BUILD:-$root/build}
python=${ZIG_PYTHON:-$build/venv/bin/python}
PACKAGE_MAINTAINER=${PACKAGE_MAINTAINER:-The nearmetal authors <nearmetal@example.org>}
export PACKAGE_MAINTAINER
# Without UCX here, the packages lack the transport for it.
PACKAGE_UCX=$build/ucx/libucx
[[ -d $PACKAGE_UCX ]] || PACKAGE_UCX=
export PACKAGE_UCX
platform=manylinux_2_28_x86_64
glibc=2.28

fail() {
	printf 'tools/package/packages.sh: %s\n' "$*" >&2
	exit 1
}

usage() {
	sed -n '4,20s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
	exit 2
}

[[ ${1-} && $1 != -* ]] || usage
mkdir -p -- "$1"
out=$(cd -- "$1" && pwd -P)
shift
parts=("$@")
((${#parts[@]})) || parts=(source wheel debian slurm rpm spack)
for part in "${parts[@]}"; do
	[[ $part =~ ^(source|wheel|debian|slurm|rpm|spack)$ ]] || usage
done

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/nearmetal/__init__.py")
[[ $version ]] || fail "nearmetal/__init__.py has no __version__"
# A version before a release sorts before it.
dotted=${version/.dev/~dev}
# No byte depends on the time of the build, only on that of the last change.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

work=$(mktemp -d -- "${TMPDIR:-/tmp}/nearmetal-packages.XXXXXX")
trap 'rm -rf -- "$work"' EXIT
log=$work/log
: >"$log"
export PATH=$build/venv/bin:$PATH

# logged COMMAND...: shows its output only if it fails.
logged() {
	"$@" >>"$log" 2>&1 || {
		tail -n 40 "$log" >&2
		fail "failed: $1 ${2-}"
	}
}

make_source() {
	mkdir -p "$work/tracked"
	git -C "$root" ls-files -z | tar -C "$root" --create --no-recursion --null --files-from=- |
		tar -C "$work/tracked" --extract
	(cd "$work/tracked" && logged python -m hatchling build --target sdist --directory "$out")
	source=$out/nearmetal-$version.tar.gz
}

# unpacked FOLDER: the source, as a user unpacks it.
unpacked() {
	mkdir -p "$1"
	tar -C "$1" --strip-components=1 --no-same-owner -xzf "$source"
}

make_wheel() {
	local tree=$work/wheel
	unpacked "$tree"
	# Headers alone, not the libraries of this machine, which want a newer glibc.
	mkdir "$work/include"
	ln -s /usr/include/rdma "$work/include/rdma"
	cat >"$work/zig.ini" <<-INI
		[binaries]
		c = ['$(command -v "$python")', '-m', 'ziglang', 'cc', '-target', 'x86_64-linux-gnu.$glibc']
		ar = ['$(command -v "$python")', '-m', 'ziglang', 'ar']
		strip = 'strip'
	INI
	# Zig has no list of the processor's abilities, which libgcc has.
	(cd "$tree" && CFLAGS=-I$work/include WHEEL_PLATFORM=$platform \
		WHEEL_MESON="--native-file=$work/zig.ini -Dc_link_args=$(gcc -print-libgcc-file-name) -Dopenmpi=/usr/lib/x86_64-linux-gnu/openmpi -Dmpich=$build/mpi/mpich5 -Ducx=$PACKAGE_UCX" \
		ZIG_GLOBAL_CACHE_DIR=$work/zig ZIG_LOCAL_CACHE_DIR=$work/zig \
		logged python -m hatchling build --target wheel --directory "$out")
}

fetch_wheels() {
	[[ -d $work/wheels ]] || logged python "$root/tools/package/wheels.py" fetch "$work/wheels"
}

make_debian() {
	local tree=$work/debian/nearmetal control
	fetch_wheels
	unpacked "$tree"
	cp -r "$tree/tools/package/debian" "$tree/debian"
	control=$(<"$tree/debian/control")
	printf '%s\n' "${control/@MAINTAINER@/"$PACKAGE_MAINTAINER"}" >"$tree/debian/control"
	cat >"$tree/debian/changelog" <<-CHANGELOG
		nearmetal ($dotted) unstable; urgency=medium

		  * See CHANGELOG.md of the source.

		 -- $PACKAGE_MAINTAINER  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
	CHANGELOG
	# Meson and the Python packages are those of set-up, which dpkg does not know.
	(cd "$tree" && PACKAGE_WHEELS=$work/wheels PACKAGE_MPICH=$build/mpi/mpich5 \
		PACKAGE_PYTHON=$build/venv/bin/python \
		logged dpkg-buildpackage --build=full --no-check-builddeps --no-sign)
	mv -- "$work"/debian/*.{deb,dsc,tar.xz} "$out/"
}

make_slurm() {
	local tree=$work/slurm
	unpacked "$tree"
	logged "$tree/tools/package/slurm.sh" "$out"
}

make_rpm() {
	fetch_wheels
	mkdir -p "$work/rpm/SOURCES"
	cp "$source" "$work/rpm/SOURCES/"
	logged rpmbuild -bb --nodeps --define "_topdir $work/rpm" --define "nearmetal_version $dotted" \
		--define "nearmetal_source $version" --define "nearmetal_wheels $work/wheels" \
		--define "nearmetal_mpich $build/mpi/mpich5" --define "nearmetal_python $build/venv/bin/python" \
		${PACKAGE_UCX:+--define "nearmetal_ucx $PACKAGE_UCX"} \
		"$root/tools/package/rpm/nearmetal.spec"
	mv -- "$work"/rpm/RPMS/*/*.rpm "$out/"
}

# The recipes name the source by its digest, and the source lies beside them.
make_spack() {
	local tree=$work/spack/nearmetal-spack digest
	digest=$(sha256sum "$source" | cut -d ' ' -f 1)
	unpacked "$work/recipes"
	mkdir "$work/spack"
	cp -r "$work/recipes/tools/package/spack" "$tree"
	sed -i "s/@VERSION@/$version/; s/@SHA256@/$digest/" "$tree"/packages/*/package.py
	cp "$source" "$tree/"
	tar -C "$work/spack" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
		--numeric-owner -c nearmetal-spack | gzip -9n >"$out/nearmetal-spack-$version.tar.gz"
}

[[ " ${parts[*]} " == *" source "* ]] || parts=(source "${parts[@]}")
for part in "${parts[@]}"; do
	printf 'package: %s\n' "$part"
	"make_$part"
done
python "$root/tools/package/sbom.py" "$version" "$SOURCE_DATE_EPOCH" >"$out/nearmetal-$version.spdx.json"
(cd "$out" && rm -f SHA256SUMS && sha256sum -- *nearmetal* >"$work/sums" && mv "$work/sums" SHA256SUMS)
