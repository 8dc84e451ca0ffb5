#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# completion.sh PYTHON SHARE: writes the completion of bash, zsh and fish below SHARE, usually /usr/share.
# PYTHON has the packages that nearmetal imports.

set -eu
python=$1 share=$2
cd -- "$(dirname -- "$0")/../.."

write() {
	mkdir -p "$share/$(dirname "$2")"
	PYTHONDONTWRITEBYTECODE=1 "$python" -m nearmetal completion "$1" >"$share/$2"
}
write bash bash-completion/completions/nearmetal
write zsh zsh/vendor-completions/_nearmetal
write fish fish/vendor_completions.d/nearmetal.fish
