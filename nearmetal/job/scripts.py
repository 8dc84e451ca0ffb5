# SPDX-License-Identifier: Apache-2.0
"""The shell scripts of a job in machines that share no files with this one; root runs them."""

from __future__ import annotations

from nearmetal.cluster.backend import STAGED, SWEEP

LINKS = ".providers"
"""What follows the name of a job in that of its directory of links to providers."""

# Words after the first four: see=FILE must exist, have=NAME should be staged, link=LIBRARY goes to
# the job's directory of providers. Without the name of a job the script only looks. A second try
# finds what the first one made.
MAKE = f"""
cd -- "$1" || exit
user=$2 tmp=$3 job=$4
shift 4
for name in * {STAGED}/*; do echo "there ${{name#{STAGED}/}}"; done
for word; do
  case $word in
    see=*) [ -e "${{word#*=}}" ] || echo "unseen ${{word#*=}}" ;;
    have=*) [ -e "{STAGED}/${{word#*=}}" ] || echo "lacks ${{word#*=}}" ;;
  esac
done
[ -n "$job" ] || exit 0
umask 077
mkdir -p -- "$job" "$job.stats" "$job{LINKS}" || exit
for word; do
  case $word in link=*) ln -sfn -- "${{word#*=}}" "$job{LINKS}/" || exit ;; esac
done
mkdir -- "$tmp/$job" 2>/dev/null || [ -d "$tmp/$job" ] || mkdir -- "$tmp/$job" || exit
chown -hR -- "$user:" "$job" "$job.stats" "$job{LINKS}" "$tmp/$job"
"""

# Another job may be faster with the same files: an existing copy stays.
CARRY = """
umask 022
new=$2 code=0
mkdir -p -- "$new" && tar -xzf - --no-same-owner -C "$new" &&
  { [ -e "$1" ] || mv -T -- "$new" "$1" || [ -e "$1" ]; } || code=1
rm -rf -- "$new"
exit $code
"""

# The markers, one per line; the directory to read; the user and its /dev/shm; all names to remove.
# A killed job may leave files in /dev/shm: they are newer than its directories and not in use.
END = f"""
cd -- "$1" || exit
marker=$2 stats=$3 user=$4 shm=$5 code=0
{SWEEP}
shift 5
left=
for name; do
  case $name in *{LINKS}) [ ! -d "$name" ] ||
    left="$left$(find "$shm" -xdev -type f -user "$user" -newer "$name" 2>/dev/null)
" ;; esac
done
[ -z "$left" ] ||
  used=$(cat /proc/[0-9]*/maps 2>/dev/null; ls -l /proc/[0-9]*/fd 2>/dev/null)
echo "$left" | while IFS= read -r name; do
  case $name in ?*) case $used in *"$name"*) ;; *) rm -f -- "$name" ;; esac ;; esac
done
[ ! -d "$stats" ] || tar -cf - -- "$stats" || code=$?
rm -rf -- "$@" && exit $code
"""

# The deadline ("" for none), then the words of END.
# With a lost connection no process reads its words, and the job is to end all the same.
GUARD = f"""
trap '' PIPE
deadline=$1
shift
echo '{{"pid": '$$'}}'
said=$(${{deadline:+timeout "$deadline"}} cat)
[ "$said" != done ] || exit 0
echo "nearmetal: a job is ended: nearmetal run has ended, or its time is over" >&2
{END}"""
