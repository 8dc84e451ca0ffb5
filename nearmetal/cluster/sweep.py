# SPDX-License-Identifier: Apache-2.0
"""How processes of a job are ended on a machine that only a shell reaches."""

SWEEP = """
killed=0
for round in 1 2 3 4 5 6 7 8 9 10; do
  found=$(grep -lzFxs -e "$marker" /proc/[0-9]*/environ | cut -d/ -f3)
  [ -n "$found" ] || break
  kill -KILL $found 2>/dev/null
  killed=$((killed + $(echo "$found" | wc -l)))
  sleep 0.1
done
"""
"""Kills every process that carries `$marker`, and counts them in `$killed`. One grep for all
processes: a program for each takes a minute under TCG."""
