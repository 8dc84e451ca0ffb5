# SPDX-License-Identifier: Apache-2.0
"""Containers inside virtual machines, placed in the four ways: each pair by its best channel.

vm1 and vm2 share a segment, vm3 is a machine of another host. The containers are real ones of Podman
in the machines, with namespaces of their own; their root is the machine's, read-only.
"""

from __future__ import annotations

import json
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.system.machines import IVSHMEM, VIRTIO_PMEM, Shared, Yard, built_image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.system.machines import Machine

pytestmark = [pytest.mark.system, pytest.mark.full, pytest.mark.timeout(5400)]

NAMES = ("vm1", "vm2", "vm3")
PART = 64 << 20
PATIENCE_S = 3000
MEETING = "/dev/shm/job"

MEET = """\
# usage: meet.sh DIR ME OTHER: both are endpoints, and each says how it meets the other.
mkfifo /tmp/in.$2
nearmetal-info meet </tmp/in.$2 >$1/$2 & pid=$!
exec 3>/tmp/in.$2
until [ -s $1/$3 ]; do sleep 0.1; done
address=$(sed -n '1s/.*"address": *"\\([0-9a-f]*\\)".*/\\1/p' $1/$3)
echo "$address $3" >&3
until [ $(wc -l <$1/$2) = 2 ] && [ $(wc -l <$1/$3) = 2 ]; do sleep 0.1; done
exec 3>&-
wait $pid
"""


@dataclass(frozen=True)
class Placement:
    """Where two ranks run: a container is a machine's number and a letter."""

    containers: tuple[tuple[int, str], tuple[int, str]]
    relation: str
    channel: str
    reason: str


PLACEMENTS = {
    "intra-VM intra-container": Placement(((0, "a"), (0, "a")), "node", "shm", "window"),
    "intra-VM inter-container": Placement(((0, "a"), (0, "b")), "host", "shm", "window"),
    "inter-VM inter-container": Placement(((0, "a"), (1, "b")), "host", "segment", "met in part"),
    "inter-node": Placement(((0, "a"), (2, "b")), "network", "net", ""),
}


class Trio:
    """Three machines: two of one host, one of another."""

    def __init__(self, yard: Yard, device: str) -> None:
        self.yard = yard
        hosts = [Shared.create(yard.folder / f"segment{n}", 2, PART, device) for n in (1, 2)]
        for name, host, part in zip(NAMES, (0, 0, 1), (0, 1, 0), strict=True):
            seed = yard.seed(name, NAMES, segment=hosts[host].seed(part))
            devices = [*hosts[host].devices(part), *yard.share_device()]
            yard.start(name, seed, devices, memory_mib=1536)
        (yard.share / "meet.sh").write_text(MEET)
        self.machines = [machine.ready().mount_share() for machine in yard.machines]
        for machine in self.machines:
            machine.tell("mkdir -p /srv/root && mount -t squashfs -o ro /dev/vda /srv/root", "root")

    def folder(self, name: str) -> Path:
        return self.yard.share_folder(name.replace(" ", "-"))

    def run(self, machine: Machine, letter: str, script: str, **env: str) -> str:
        """Run a shell script in a new container of a machine; it must end well."""
        options = [f"--env={key}={value}" for key, value in env.items()]
        command = (
            f"podman run --rm --name {letter} --hostname {machine.name}{letter}"
            f" $(nearmetal-guest container {MEETING}) --volume=/share:/share {shlex.join(options)}"
            f" --rootfs /srv/root:O sh -c {shlex.quote(script)}"
        )
        done = machine.run(command, "root", timeout_s=PATIENCE_S + 60)
        said = done.stdout.decode(errors="replace")
        assert done.returncode == 0, (
            f"{machine.name}{letter}: {script}\n{said}\n{done.stderr.decode()}"
        )
        return said

    def run_ranks(self, placement: Placement, scripts: tuple[str, str], **env: str) -> str:
        """Run a script for each rank in its container; returns what they printed."""
        first, second = placement.containers
        if first == second:
            both = f"{{ {scripts[0]}; }} & one=$!; {{ {scripts[1]}; }} || exit 1; wait $one"
            return self.run(self.machines[first[0]], first[1], both, **env)
        with ThreadPoolExecutor() as pool:
            jobs = [
                pool.submit(self.run, self.machines[number], letter, script, **env)
                for (number, letter), script in zip(placement.containers, scripts, strict=True)
            ]
            return "".join(job.result() for job in jobs)


@pytest.fixture(scope="module", params=[IVSHMEM, VIRTIO_PMEM])
def trio(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Trio]:
    yard = Yard(tmp_path_factory.mktemp(request.param), built_image("containers"), hub=True)
    try:
        yield Trio(yard, request.param)
    finally:
        yard.end()


@pytest.mark.parametrize("name", PLACEMENTS)
def test_each_placement_is_known_with_its_reason(trio: Trio, name: str) -> None:
    placement, folder = PLACEMENTS[name], trio.folder(f"meet {name}")
    words = f"sh /share/meet.sh /share/{folder.name}"
    trio.run_ranks(placement, (f"{words} x y", f"{words} y x"))
    for rank in "xy":
        met = json.loads((folder / rank).read_text().splitlines()[1])
        assert (met["relation"], met["channel"]) == (placement.relation, placement.channel), met
        assert placement.reason in met["reason"], met
        assert met["reason"], met
