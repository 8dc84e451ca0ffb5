# SPDX-License-Identifier: Apache-2.0
"""Hosts of a cluster: commands and files there, and the segment."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearmetal.cluster.backends.libvirt.build import Layout, lead_of
from nearmetal.cluster.backends.libvirt.records import RecordNotes, ResourceRecord
from nearmetal.cluster.backends.libvirt.values import NONE, VirtualHost
from nearmetal.cluster.resource import Resource
from nearmetal.core.errors import BackendError, CommandError
from nearmetal.core.process import Command, Completed, Runner
from nearmetal.core.resources import tool
from nearmetal.core.ssh import Login

STEP_S = 60.0
TOOL = "nearmetal-segment"
MEMORY = "/dev/shm"  # noqa: S108 - memory of the host; the names there are of one cluster alone

_WRITE = (
    'umask 077; new=$1.new; rm -f -- "$new"; cat >"$new" && sync -d -- "$new" && '
    '{ [ -z "$2" ] || chown -- "$2" "$new"; } && mv -f -- "$new" "$1" || '
    '{ code=$?; rm -f -- "$new"; exit $code; }'
)


def ssh_login(uri: str) -> Login | None:
    """Return the login on the host of a libvirt URI; None for this machine. Pure."""
    scheme, _, rest = uri.partition("://")
    if not scheme.endswith("+ssh"):
        return None
    where = rest.partition("/")[0]
    host, colon, port = where.rpartition(":")
    if colon and port.isdigit():
        return Login(host, port=int(port))
    return Login(where)


def owner_of_files(label: str) -> str:
    """Return uid:gid for chown from libvirt's label; "" where it is our own. Pure."""
    text = label.replace("+", "")
    return "" if text in ("", f"{os.geteuid()}:{os.getegid()}") else text


@dataclass(frozen=True)
class HostShell:
    """Commands and files on one host. Errors are BackendError and name the host."""

    name: str
    uri: str
    runner: Runner

    @property
    def remote(self) -> bool:
        """Whether the host is another machine."""
        return ssh_login(self.uri) is not None

    def command(self, argv: Sequence[str], stdin: bytes = b"") -> Command:
        """Return the command that runs `argv` there."""
        login = ssh_login(self.uri)
        if login is None:
            return Command(tuple(argv), stdin=stdin)
        batch = {"BatchMode": "yes", "ConnectTimeout": "10"}
        login = Login(login.host, port=login.port, options=batch)
        return Command(login.argv(shlex.join(argv)), stdin=stdin)

    def run(self, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = STEP_S) -> Completed:
        """Run to the end; the caller looks at the exit code."""
        return self.runner.run(self.command(argv, stdin), timeout_s=timeout_s)

    def check(self, what: str, argv: Sequence[str], stdin: bytes = b"") -> str:
        """Run to the end and return the output; the error of a failure begins with `what`."""
        try:
            return self.runner.check(self.command(argv, stdin), timeout_s=STEP_S).text
        except CommandError as error:
            reason = error.hint or error.message
            full = "No space left" in reason or "Disk quota" in reason
            hint = "make room there, and run `nearmetal up` again" if full else ""
            raise BackendError(f"host {self.name}: {what}: {reason}", hint) from error

    def own(self, path: str, owner: str) -> None:
        """Give a file to a user, "" for ours."""
        if owner:
            self.check(f"cannot change the owner of {path}", ["chown", "--", owner, path])

    def prepare(self, directory: str, owner: str) -> None:
        """Make a directory for our files; `owner` is uid:gid, "" for ours."""
        self.check(f"cannot make {directory}", ["mkdir", "-p", "-m", "0700", "--", directory])
        self.own(directory, owner)

    def write(self, path: str, content: bytes, owner: str = "") -> None:
        """Write a file of mode 0600, whole or not at all."""
        self.check(f"cannot write {path}", ["sh", "-c", _WRITE, "sh", path, owner], content)

    def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """Return the last bytes of a file; None if there is none."""
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
        """Return a regular file's size; None if there is none."""
        done = self.run(["stat", "-c", "%F %s", "--", path])
        words = done.text.split()
        if done.code != 0 or words[:1] != ["regular"]:
            return None
        return int(words[-1])

    def remove(self, paths: Sequence[str], directory: str = "") -> None:
        """Remove files, then a directory if it is empty; no error if they do not exist."""
        self.check("cannot remove files", ["rm", "-f", "--", *paths])
        if directory:
            self.run(["rmdir", "--", directory])


def copy(shell: HostShell, source: str, path: str, owner: str) -> None:
    """Copy a file of the host to a new file of mode 0600."""
    script = 'umask 077; rm -f -- "$2" && cat -- "$1" >"$2"'
    shell.check(f"cannot copy {source} to {path}", ["sh", "-c", script, "sh", source, path])
    shell.own(path, owner)


# The directory and the segment


def _tool(shell: HostShell, directory: str) -> str:
    """Return the tool's path on the host; the tool is carried to another machine."""
    local = tool(TOOL)
    if not shell.remote:
        return str(local)
    path = f"{directory}/{TOOL}"
    if shell.size(path) != local.stat().st_size:
        shell.write(path, local.read_bytes())
        shell.check(f"cannot make {path} executable", ["chmod", "0700", "--", path])
    return path


def segment_path(item: Resource, cluster: str, identity: str) -> str:
    """Return the path of a host's segment, "" if it has none. Pure."""
    if item.of(VirtualHost).device == NONE:
        return ""
    return f"{MEMORY}/nearmetal-{cluster}-{item.key.name}-{identity[:8]}"


def create(shell: HostShell, host: VirtualHost, path: str, owner: str) -> RecordNotes:
    """Make the directory and, unless `path` is empty, the segment; returns the notes to record."""
    shell.prepare(host.directory, owner)
    if not path:
        return RecordNotes()
    shell.remove([path])
    numbers = {"parts": host.parts, "part-size": host.part_size, "lead": lead_of(host.device)}
    options = [word for name, number in numbers.items() for word in (f"--{name}", str(number))]
    argv = [_tool(shell, host.directory), "create", path, *options]
    shell.check(f"cannot make the segment {path}", argv)
    shell.own(path, owner)
    size = shell.size(path)
    if size is None:
        raise BackendError(f"host {shell.name}: the new segment {path} has disappeared")
    return RecordNotes(segment=path, size=size)


def is_sound(shell: HostShell, record: ResourceRecord) -> bool:
    """Whether the segment has its size; a host without a segment needs only its record."""
    if record.notes.size is None:
        return record.item.of(VirtualHost).device == NONE
    return shell.size(record.notes.segment) == record.notes.size


def layout(shell: HostShell, record: ResourceRecord) -> Layout:
    """Read the layout of a segment from the segment itself."""
    path, directory = record.notes.segment, record.item.of(VirtualHost).directory
    text = shell.check(
        f"cannot read the segment {path}", [_tool(shell, directory), "show", path, "--json"]
    )
    return read_layout(text, record.notes.size or 0, f"host {shell.name}")


def read_layout(text: str, size: int, where: str) -> Layout:
    """Return the layout in the output of `nearmetal-segment show --json`. Pure.

    Raises BackendError, which begins with `where`.
    """
    try:
        data: Any = json.loads(text)
        names = ("nr_parts", "part_size", "part_off", "lead")
        nr_parts, part_size, part_off, lead = (int(data[name]) for name in names)
        token = str(data["token"])
    except (KeyError, TypeError, ValueError) as error:
        raise BackendError(f"{where}: the output of {TOOL} is not complete: {error}") from error
    return Layout(token, nr_parts, part_size, lead + part_off, size)


def delete(shell: HostShell, record: ResourceRecord) -> None:
    """Remove the segment, our tool, and the directory if it is empty."""
    directory = record.item.of(VirtualHost).directory
    files = [f"{directory}/{TOOL}"] if shell.remote else []
    files += [record.notes.segment] if record.notes.segment else []
    shell.remove(files, directory)
