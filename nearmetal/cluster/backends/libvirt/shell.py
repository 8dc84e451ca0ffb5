# SPDX-License-Identifier: Apache-2.0
"""Commands and files on the machine of a hypervisor: this one, or one that ssh reaches."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.core.errors import BackendError, CommandError
from nearmetal.core.process import Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.core.process import Completed, Runner

STEP_S = 60.0
_CONNECT = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")


def ssh_target(uri: str) -> tuple[str, ...]:
    """Return ssh's words for the host of a libvirt URI; () for this machine. Pure."""
    scheme, _, rest = uri.partition("://")
    if not scheme.endswith("+ssh"):
        return ()
    where = rest.partition("/")[0]
    host, colon, port = where.rpartition(":")
    if colon and port.isdigit():
        return ("-p", port, host)
    return (where,)


def owner_of_files(label: str) -> str:
    """Return uid:gid as chown takes it, out of libvirt's label; "" where it is our own. Pure."""
    text = label.replace("+", "")
    return "" if text in ("", f"{os.geteuid()}:{os.getegid()}") else text


@dataclass(frozen=True)
class HostShell:
    """One host. Errors are BackendError and name it."""

    name: str
    uri: str
    runner: Runner

    @property
    def remote(self) -> tuple[str, ...]:
        """Ssh's words for this host; () where it is this machine."""
        return ssh_target(self.uri)

    def command(self, argv: Sequence[str], stdin: bytes = b"") -> Command:
        """Return the command that runs `argv` there."""
        if not self.remote:
            return Command(tuple(argv), stdin=stdin)
        return Command(("ssh", *_CONNECT, *self.remote, "--", shlex.join(argv)), stdin=stdin)

    def run(self, argv: Sequence[str], stdin: bytes = b"") -> Completed:
        """Run to the end; the caller looks at the exit code."""
        return self.runner.run(self.command(argv, stdin), timeout_s=STEP_S)

    def check(self, what: str, argv: Sequence[str], stdin: bytes = b"") -> str:
        """Run to the end and return its output; a failure says `what` and why."""
        try:
            return self.runner.check(self.command(argv, stdin), timeout_s=STEP_S).text
        except CommandError as error:
            reason = error.hint or error.message
            hint = ""
            if "No space left" in reason or "Disk quota" in reason:
                hint = "make room there, and run `nearmetal up` again"
            raise BackendError(f"host {self.name}: {what}: {reason}", hint) from error

    def prepare(self, directory: str, owner: str) -> None:
        """Make a directory for our files; `owner` is uid:gid, "" for ours."""
        self.check(f"cannot make {directory}", ["mkdir", "-p", "-m", "0700", "--", directory])
        if owner:
            self.check(f"cannot give away {directory}", ["chown", "--", owner, directory])

    def write(self, path: str, content: bytes, owner: str = "") -> None:
        """Write a file of mode 0600, entirely or not at all."""
        script = (
            'umask 077; new=$1.new; rm -f -- "$new"; cat >"$new" && sync -d -- "$new" && '
            '{ [ -z "$2" ] || chown -- "$2" "$new"; } && mv -f -- "$new" "$1" || '
            '{ code=$?; rm -f -- "$new"; exit $code; }'
        )
        argv = ["sh", "-c", script, "sh", path, owner]
        self.check(f"cannot write {path}", argv, content)

    def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """Return the last bytes of a file; None when there is none."""
        if not self.remote:
            try:
                with Path(path).open("rb") as stream:
                    size = os.fstat(stream.fileno()).st_size
                    stream.seek(max(0, size - limit))
                    return stream.read(limit)
            except OSError:
                return None
        done = self.run(["tail", "-c", str(limit), "--", path])
        return done.stdout if done.code == 0 else None

    def size(self, path: str) -> int | None:
        """Return a regular file's size; None when there is none."""
        done = self.run(["stat", "-c", "%F %s", "--", path])
        words = done.text.split()
        if done.code != 0 or words[:1] != ["regular"]:
            return None
        return int(words[-1])

    def remove(self, paths: Sequence[str], directory: str = "") -> None:
        """Remove files, and a directory if it is empty then; no error when they are not there."""
        self.check("cannot remove files", ["rm", "-f", "--", *paths])
        if directory:
            self.run(["rmdir", "--", directory])

    def json(self, what: str, argv: Sequence[str]) -> dict[str, object]:
        """Run a tool that prints one JSON object."""
        try:
            data = json.loads(self.check(what, argv))
        except ValueError as error:
            raise BackendError(f"host {self.name}: {what}: no JSON: {error}") from error
        if not isinstance(data, dict):
            raise BackendError(f"host {self.name}: {what}: no JSON object")
        return data
