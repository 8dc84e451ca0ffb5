# SPDX-License-Identifier: Apache-2.0
"""What lies on a hypervisor for a cluster: a directory, and the segment's file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cluster.backends.libvirt.build import Layout, lead_of
from nearmetal.cluster.backends.libvirt.plan import NONE, VirtualHost
from nearmetal.cluster.backends.libvirt.records import Notes, Record
from nearmetal.core.errors import BackendError
from nearmetal.core.process import find_program
from nearmetal.core.resources import REPOSITORY

if TYPE_CHECKING:
    from nearmetal.cluster.backends.libvirt.shell import HostShell
    from nearmetal.cluster.resource import Resource

TOOL = "nearmetal-segment"
MEMORY = "/dev/shm"  # noqa: S108 - memory of the host, named so that nobody else's is met


def segment_tool() -> Path:
    """Return nearmetal-segment: the build's, or an installed one."""
    built = REPOSITORY / "build/c/src/tools" / TOOL
    if os.access(built, os.X_OK):
        return built
    found = find_program(TOOL)
    if found is None:
        raise BackendError(f"no {TOOL}: looked for {built}", "run `make setup`")
    return found


def _tool(shell: HostShell, directory: str) -> str:
    """Return the tool's path on the host; carried there where that is another machine."""
    local = segment_tool()
    if not shell.remote:
        return str(local)
    path = f"{directory}/{TOOL}"
    if shell.size(path) != local.stat().st_size:
        shell.write(path, local.read_bytes())
        shell.check(f"cannot make {path} executable", ["chmod", "0700", "--", path])
    return path


def segment_path(item: Resource, cluster: str, identity: str) -> str:
    """Return where a host's segment lies, "" where it has none. Pure."""
    if item.of(VirtualHost).device == NONE:
        return ""
    return f"{MEMORY}/nearmetal-{cluster}-{item.key.name}-{identity[:8]}"


def create(shell: HostShell, host: VirtualHost, path: str, owner: str) -> Notes:
    """Make the directory and, unless `path` is empty, the segment; returns what to record."""
    shell.prepare(host.directory, owner)
    if not path:
        return Notes()
    shell.remove([path])
    argv = [
        _tool(shell, host.directory),
        "create",
        path,
        "--parts",
        str(host.parts),
        "--part-size",
        str(host.part_size),
        "--lead",
        str(lead_of(host.device)),
    ]
    shell.check(f"cannot make the segment {path}", argv)
    if owner:
        shell.check(f"cannot give away {path}", ["chown", "--", owner, path])
    size = shell.size(path)
    if size is None:
        raise BackendError(f"host {shell.name}: the segment {path} is gone at once")
    return Notes(segment=path, size=size)


def is_sound(shell: HostShell, record: Record) -> bool:
    """Whether the segment is there in its size; where there is none, the record is enough."""
    if record.notes.size is None:
        return record.item.of(VirtualHost).device == NONE
    return shell.size(record.notes.segment) == record.notes.size


def layout(shell: HostShell, record: Record) -> Layout:
    """Read from the segment itself where its parts lie."""
    path, directory = record.notes.segment, record.item.of(VirtualHost).directory
    data = shell.json(
        f"cannot read the segment {path}", [_tool(shell, directory), "show", path, "--json"]
    )
    try:
        numbers = [int(str(data[name])) for name in ("nr_parts", "part_size", "part_off", "lead")]
        token = str(data["token"])
    except (KeyError, ValueError) as error:
        raise BackendError(f"host {shell.name}: {TOOL} says nothing of {error}") from error
    nr_parts, part_size, part_off, lead = numbers
    return Layout(token, nr_parts, part_size, lead + part_off, record.notes.size or 0)


def delete(shell: HostShell, record: Record) -> None:
    """Remove the segment, our tool and the directory, when nothing else is in it."""
    directory = record.item.of(VirtualHost).directory
    files = [f"{directory}/{TOOL}"] if shell.remote else []
    files += [path for path in (record.notes.segment,) if path]
    shell.remove(files, directory)
