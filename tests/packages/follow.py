#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""follow.py PAGE[#HEADING]...: does what the pages say, literally, as a new user.

Saves each file that a page shows after "Save this as `NAME`", runs its commands in one shell, and
expects the lines that it shows below them; numbers may differ. Prints each command with the seconds
since the start.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

PART = re.compile(
    r"Save this as `(?P<name>[\w.-]+)`.*?^```\w+\n(?P<text>.*?)^```$"
    r"|^```sh\n(?P<commands>.*?)^```$"
    r"|(?P<shown>(?:^ {4}[^\n]+\n)+)",
    re.MULTILINE | re.DOTALL,
)


def agreed(command: str) -> str:
    """Return a command that asks nothing, and whose success is the status 0."""
    if command.startswith("nearmetal plan "):
        return f"{command} || [ $? = 3 ]"
    for asks, yes in (("nearmetal down", "--yes"), ("apt-get install", "--yes")):
        if command.startswith(asks):
            return command.replace(asks, f"{asks} {yes}", 1)
    return command


def comparable(line: str) -> str:
    """Return a line without its numbers and the width of its columns."""
    return " ".join(re.sub(r"\d+", "N", line).split())


def section(argument: str) -> str:
    """Return the text of a page, or of one of its sections."""
    path, _, heading = argument.partition("#")
    text = Path(path).read_text(encoding="utf-8")
    if heading:
        _, found, text = text.partition(f"\n## {heading}\n")
        if not found:
            raise SystemExit(f"{path} has no section {heading!r}")
        text, _, _ = text.partition("\n## ")
    return text


def main(arguments: list[str]) -> int:
    """Follow the pages; return 0 if all that they say is so."""
    script, wanted = ["set -e"], set()
    for part in (part for each in arguments for part in PART.finditer(section(each))):
        if part["name"]:
            script.append(f"printf %s {shlex.quote(part['text'])} >{part['name']}")
        for command in (part["commands"] or "").splitlines():
            script += [f'echo "[$SECONDS s]" {shlex.quote("$ " + command)}', agreed(command)]
        wanted |= {comparable(line) for line in (part["shown"] or "").splitlines()}
    script.append('echo "[$SECONDS s] the end"')
    process = subprocess.Popen(
        ["/bin/bash", "-c", "\n".join(script)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for line in process.stdout or ():
        sys.stdout.write(line)
        sys.stdout.flush()
        wanted.discard(comparable(line))
    for line in sorted(wanted):
        sys.stdout.write(f"not printed: {line}\n")
    return process.wait() or bool(wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
