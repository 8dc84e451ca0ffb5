# SPDX-License-Identifier: Apache-2.0
# Runs a script, which is its input, once: sh -c TEXT sh TOKEN AGAIN NODE SECONDS MOST
#
# AGAIN is 1 after a run that was interrupted or failed: what it has left is ended and removed. The last
# line is `nearmetal: exit CODE after N s` where the script ended; before it, the last MOST bytes of the
# output. The output is in a file, so a daemon that the script starts keeps no connection open.
token=$1 again=$2 node=$3 limit=$4 most=$5 name=nearmetal-post.$1
umask 077

sweep() { # end the processes of the script
	marker=NEARMETAL_POST=$token
	@SWEEP@
}

[ "$again" = 0 ] || { sweep && rm -rf /var/lib/"$name".* /tmp/"$name".*; }
place=$(mktemp -d /var/lib/"$name".XXXXXX 2>/dev/null || mktemp -d /tmp/"$name".XXXXXX) || exit 1
trap 'rm -rf "$place"' EXIT
cat >"$place/script" && chmod 0700 "$place/script" || exit 1
umask 022
begin=$(date +%s)
env NEARMETAL_POST="$token" NEARMETAL_NODE="$node" timeout -k 5 "$limit" "$place/script" \
	</dev/null >"$place/log" 2>&1
code=$? seconds=$(($(date +%s) - begin))
case $code in 124 | 137) sweep ;; esac
tail -c "$most" "$place/log"
echo
echo "nearmetal: exit $code after $seconds s"
