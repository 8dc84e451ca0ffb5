#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds a release from its tag, twice, and compares the bytes:
#
#   tools/package/release.sh FOLDER
#
# The tree must be clean, and HEAD must have the tag vVERSION, where nearmetal/__init__.py says VERSION
# and CHANGELOG.md has a section for it. Publishes nothing: FOLDER holds what is to be signed and sent.

set -euo pipefail
export LC_ALL=C.UTF-8

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)

fail() {
	printf 'tools/package/release.sh: %s\n' "$*" >&2
	exit 1
}

[[ $# == 1 && $1 != -* ]] || {
	sed -n '4,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
	exit 2
}
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/nearmetal/__init__.py")
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "'$version' in nearmetal/__init__.py is not the version of a release"
[[ -z $(git -C "$root" status --porcelain) ]] || fail "the tree has changes: commit or remove them"
git -C "$root" tag --points-at HEAD | grep -Fqx "v$version" ||
	fail "HEAD has no tag v$version: git tag --sign v$version"
grep -Eq "^## ${version//./[.]}( |\$)" "$root/CHANGELOG.md" || fail "CHANGELOG.md has no section '## $version'"
grep -Fxq "version: $version" "$root/CITATION.cff" || fail "CITATION.cff has another version than $version"
[[ ! -e $1 ]] || fail "$1 exists: give a new folder"

mkdir -p -- "$1"
again=$(mktemp -d)
trap 'rm -rf -- "$again"' EXIT
"$root/tools/package/packages.sh" "$1"
"$root/tools/package/packages.sh" "$again"
cmp -- "$1/SHA256SUMS" "$again/SHA256SUMS" || fail "two builds differ: see SHA256SUMS"
printf 'release %s: sign %s\n' "$version" "$1/SHA256SUMS"
