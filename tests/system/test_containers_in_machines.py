# SPDX-License-Identifier: Apache-2.0
"""Containers inside virtual machines, placed in the four ways: each pair by its best channel.

vm1 and vm2 share a segment, vm3 is a machine of another host. The containers are real ones of Podman
in the machines, with namespaces of their own; their root is the machine's, read-only. An MPI job
runs in each placement, and where it shares memory the fabric suite and the transport suite, too.
"""

from __future__ import annotations

import json
import shlex
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.job.stats import read_stats
from tests.system.machines import IVSHMEM, ROOT, VIRTIO_PMEM, Shared, Yard, built_image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.system.machines import Machine

pytestmark = [pytest.mark.system, pytest.mark.full, pytest.mark.timeout(5400)]

NAMES = ("vm1", "vm2", "vm3")
PART = 64 << 20
BUILD = ROOT / "build/c"
PROGRAMS = (
    ROOT / "build/programs/openmpi5/mpi_traffic",
    BUILD / "tests/fabric/fabric_traffic",
    BUILD / "tests/unit/test_transport",
    BUILD / "tests/unit/far_node",
)
PATIENCE_S = 3000
MEETING = "/dev/shm/job"
PORT = 7412

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

AGENT = """\
#!/bin/sh
# usage: agent HOST COMMAND...: mpirun's remote shell, whose daemons wait in their containers.
host=$1; shift
echo "$*" >"${0%/*}/$host.new" && mv "${0%/*}/$host.new" "${0%/*}/$host"
"""


@dataclass(frozen=True)
class Placement:
    """Where two ranks run: a container is a machine's number and a letter."""

    containers: tuple[tuple[int, str], tuple[int, str]]
    relation: str
    channel: str
    reason: str

    @property
    def names(self) -> tuple[str, str]:
        """Return the host names of the two containers."""
        first, second = (NAMES[number] + letter for number, letter in self.containers)
        return first, second


PLACEMENTS = {
    "intra-VM intra-container": Placement(((0, "a"), (0, "a")), "node", "shm", "window"),
    "intra-VM inter-container": Placement(((0, "a"), (0, "b")), "host", "shm", "window"),
    "inter-VM inter-container": Placement(((0, "a"), (1, "b")), "host", "segment", "is in part"),
    "inter-node": Placement(((0, "a"), (2, "b")), "network", "net", ""),
}
NEAR = [name for name, placement in PLACEMENTS.items() if placement.channel != "net"]


class Trio:
    """Three machines: two of one host, one of another."""

    def __init__(self, yard: Yard, device: str) -> None:
        self.yard = yard
        hosts = [Shared.create(yard.memory(f"segment{n}"), 2, PART, device) for n in (1, 2)]
        for name, host, part in zip(NAMES, (0, 0, 1), (0, 1, 0), strict=True):
            seed = yard.seed(name, NAMES, segment=hosts[host].seed(part))
            devices = [*hosts[host].devices(part), *yard.share_device()]
            yard.start(name, seed, devices, memory_mib=1536)
        for program in PROGRAMS:
            shutil.copy(program, yard.share)
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


def went_by(placement: Placement, stats: Path, least: int) -> None:
    """Check what the endpoints of the two ranks counted: where they were, and what carried it."""
    endpoints = read_stats(stats)
    assert {endpoint["host"] for endpoint in endpoints} == set(placement.names)
    process = {one["identity"]: (one["host"], one["pid"]) for one in endpoints}
    peers: list[dict[str, Any]] = [
        peer
        for endpoint in endpoints
        for peer in endpoint["peers"]
        # A rank has endpoints that talk to each other.
        if process.get(peer["id"]) != (endpoint["host"], endpoint["pid"])
    ]
    for peer in peers:
        # Who was never sent anything was not looked for.
        if peer["sent_messages"]:
            way = (peer["relation"], peer["channel"])
            assert way == (placement.relation, placement.channel), peer
        for channel, count in peer["channels"].items():
            # Bytes may come before the way back is chosen, which is none then.
            assert channel == placement.channel or (
                channel == "none" and not count["sent_bytes"]
            ), peer
        assert (peer["quarantines"], peer["fallbacks"]) == (0, 0), peer
    assert sum(peer["sent_messages"] for peer in peers) > least


@pytest.mark.parametrize("name", PLACEMENTS)
def test_an_mpi_job_goes_by_that_channel(trio: Trio, name: str) -> None:
    placement = PLACEMENTS[name]
    folder, stats = trio.folder(f"job {name}"), trio.folder(f"job stats {name}")
    here, done = f"/share/{folder.name}", f"/share/{folder.name}/done"
    agent = folder / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    first, second = placement.names
    hosts = f"{first}:2" if first == second else f"{first},{second}"
    # The names have no addresses: else two containers of a machine were one node for the launcher.
    start = (
        f"mpirun --prtemca plm ssh --prtemca plm_ssh_agent {here}/agent"
        f" --prtemca plm_ssh_no_tree_spawn 1 --bind-to none --host {hosts} -n 2 --map-by node"
        f" /share/mpi_traffic -n 400 -s 11 -b 8M -w 200; code=$?; touch {done}; exit $code"
    )
    wait = (
        f"until [ -e {here}/{second} ] || [ -e {done} ]; do sleep 0.2; done; sh {here}/{second};"
        f" until [ -e {done} ]; do sleep 0.2; done"
    )
    env = {"NEARMETAL_STATS_DIR": f"/share/{stats.name}", "PRTE_MCA_prte_default_hostfile": "none"}
    said = trio.run_ranks(placement, (start, "true" if first == second else wait), **env)
    assert "traffic OK: " in said, said
    went_by(placement, stats, 400)


@pytest.mark.parametrize("name", NEAR)
def test_the_fabric_suite_goes_by_that_channel(trio: Trio, name: str) -> None:
    placement, folder = PLACEMENTS[name], trio.folder(f"traffic {name}")
    stats = trio.folder(f"stats {name}")
    said = trio.run_ranks(
        placement,
        (
            f"/share/fabric_traffic -n 2 -r 0 -d /share/{folder.name} -m 1000 -w {PATIENCE_S}",
            f"/share/fabric_traffic -n 2 -r 1 -d /share/{folder.name} -m 1000 -w {PATIENCE_S}",
        ),
        FI_PROVIDER="nearmetal,tcp",
        NEARMETAL_STATS_DIR=f"/share/{stats.name}",
    )
    assert "traffic OK: 25 cases, 2 ranks, provider nearmetal" in said
    went_by(placement, stats, 2000)


@pytest.mark.parametrize("name", NEAR)
def test_the_transport_suite_between_containers(trio: Trio, name: str) -> None:
    placement, folder = PLACEMENTS[name], trio.folder(f"suite {name}")
    channel = placement.channel
    other = f"10.9.0.{11 + placement.containers[1][0]}:{PORT}"
    done = f"/share/{folder.name}/done"
    suite = (
        f"until [ -s /share/{folder.name}/far ]; do sleep 0.1; done;"
        f" cases=$(/share/test_transport --list | grep ^{channel}_);"
        f" NM_TEST_OTHER={other} NM_TEST_RELATION={placement.relation} /share/test_transport $cases;"
        f" code=$?; echo $code >{done}; exit $code"
    )
    far = (
        f"/share/far_node {PORT} >/share/{folder.name}/far & far=$!;"
        f" until [ -s {done} ]; do sleep 0.1; done; kill $far"
    )
    said = trio.run_ranks(placement, (suite, far)).splitlines()
    assert len([line for line in said if line.startswith(f"ok {channel}_")]) >= 12, said
    assert not [line for line in said if line.startswith(("not ok", "skip"))], said
