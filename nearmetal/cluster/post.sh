# SPDX-License-Identifier: Apache-2.0
# Runs a script, which is its input, once: sh -c TEXT sh TOKEN NODE SECONDS MOST SIZE OLD...
#
# OLD are the tokens of runs that were interrupted or failed: what they have left is ended and
# removed. The last line is `nearmetal: exit CODE after N s` where the script ended; before it, the
# last MOST bytes of the output. The script writes into a pipe, of which tail(1) keeps no more than
# that. A daemon that the script starts keeps no connection open: what it writes later is lost.
token=$1 node=$2 limit=$3 most=$4 size=$5 found=
shift 5
umask 077

sweep() { # end the processes with a token
	marker=NEARMETAL_POST=$1
	@SWEEP@
	[ -z "$found" ]
}

for old; do
	sweep "$old" || { echo "an earlier run is still alive:" process $found >&2 && exit 1; }
	rm -rf /var/lib/nearmetal-post."$old".* /tmp/nearmetal-post."$old".*
done
name=nearmetal-post.$token
place=$(mktemp -d /var/lib/"$name".XXXXXX 2>/dev/null || mktemp -d /tmp/"$name".XXXXXX) || exit 1
trap 'rm -rf "$place"' EXIT
cat >"$place/script" && chmod 0700 "$place/script" || exit 1
came=$(($(wc -c <"$place/script")))
[ "$came" -eq "$size" ] || { echo "$came of $size bytes of the script came" >&2 && exit 1; }

# 9 is open for both ways, so that no end waits for the other to be opened; 8 outlives the reader.
mkfifo -m 600 "$place/out" "$place/last" || exit 1
exec 9<>"$place/out" 8<"$place/out"
{ tail -c "$most" <"$place/last" >"$place/log" && : >"$place/read"; } 8<&- 9<&- &
cat <&8 >"$place/last" 9<&- &
reader=$!
umask 022
begin=$(date +%s)
env NEARMETAL_POST="$token" NEARMETAL_NODE="$node" timeout -k 5 "$limit" "$place/script" \
	</dev/null >&9 2>&1 8<&- 9<&-
code=$? seconds=$(($(date +%s) - begin))
case $code in 124 | 137) sweep "$token" ;; esac
exec 9<&-
tries=0
until [ -e "$place/read" ]; do # it ends when no process has the pipe
	tries=$((tries + 1))
	if [ $tries -eq 20 ]; then
		setsid cat <&8 >/dev/null 2>&1 &
		kill "$reader" 2>/dev/null
	fi
	sleep 0.1
done
exec 8<&-
cat "$place/log"
[ -z "$found" ] || echo "still alive:" process $found
echo
echo "nearmetal: exit $code after $seconds s"
