#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# complete.sh SCRIPT WORD: what bash offers after `nearmetal run WORD` and a Tab, by the completion
# SCRIPT.

set -u # and no -e: a shell of a user has none, and no name is no error
. "$1"
COMP_WORDS=(nearmetal run "$2") COMP_CWORD=2
"$(complete -p nearmetal | sed 's/.*-F \([^ ]*\).*/\1/')" nearmetal "$2" run
printf '%s\n' "${COMPREPLY[@]}"
