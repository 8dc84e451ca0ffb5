# SPDX-License-Identifier: Apache-2.0
"""Machines that boot the built image: they become what their seed says, or say why not."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nearmetal.image.seed import FAILED_MARK
from tests.system import segment_checks as segment
from tests.system.machines import ROOT, Machine, Shared, Yard, built_image

pytestmark = [pytest.mark.system, pytest.mark.timeout(2400)]

NAMES = ("vm1", "vm2")
MIB = 1 << 20
PART = 16 * MIB
POKE = ROOT / "build/c/tests/system/segment_poke"
HELLO = ROOT / "build/programs/openmpi5/mpi_hello"


@pytest.fixture(scope="module")
def image() -> dict[str, str]:
    return built_image()


@pytest.fixture(scope="module")
def alone(
    tmp_path_factory: pytest.TempPathFactory, image: dict[str, str]
) -> Iterator[dict[str, Machine]]:
    """Machines that are to say something, each of its own yard, booted side by side."""
    names = ("no seed", "wrong segment", "probe", "no disk")
    yards = {name: Yard(tmp_path_factory.mktemp("alone"), image) for name in names}
    shared = Shared.create(yards["wrong segment"].memory("segment"), 2, 2 * MIB)
    wrong = shared.seed(0) | {"token": "00112233445566778899aabbccddeeff"}
    seed = yards["wrong segment"].seed("vm1", ["vm1"], segment=wrong)
    try:
        yield {
            "no seed": yards["no seed"].start("vm1", None),
            "wrong segment": yards["wrong segment"].start("vm1", seed, shared.devices(0)),
            "probe": yards["probe"].start(
                "probe", None, append="nearmetal.probe", serial="something-else"
            ),
            "no disk": yards["no disk"].start("vm1", None, serial="something-else"),
        }
    finally:
        for place in yards.values():
            place.end()


class Pair:
    """Two machines of one host, with a segment of three parts between them."""

    def __init__(self, folder: Path, image: dict[str, str]) -> None:
        self.yard = Yard(folder, image)
        self.shared = Shared.create(self.yard.memory("segment"), 3, PART)
        self.machines: list[Machine] = []

    def start(self) -> None:
        for part, name in enumerate(NAMES):
            seed = self.yard.seed(name, NAMES, segment=self.shared.seed(part))
            seed["interfaces"][0]["soft_roce"] = True
            self.machines.append(self.yard.start(name, seed, self.shared.devices(part)))
        for machine in self.machines:
            machine.ready()
            machine.put(POKE, "/tmp/poke")
            machine.put(HELLO, "/tmp/hello")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, image: dict[str, str]) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("pair"), image)
    try:
        made.start()
        yield made
    finally:
        made.yard.end()


def config(machine: Machine) -> dict[str, str]:
    lines = machine.tell("cat /run/nearmetal/segment.conf").splitlines()
    pairs = (line.split("=", 1) for line in lines if line.strip())
    return {key.strip(): value.strip() for key, value in pairs}


def test_each_machine_is_what_its_seed_says(pair: Pair) -> None:
    for number, machine in enumerate(pair.machines, 1):
        assert machine.tell("hostname") == f"vm{number}"
        assert machine.tell("getent hosts vm1 vm2").split() == [
            "10.9.0.11",
            "vm1",
            "10.9.0.12",
            "vm2",
        ]
        assert machine.tell("cat /etc/nearmetal/hostfile") == "vm1 slots=1\nvm2 slots=1"
        shown = json.loads(machine.tell("ip -j address show eth0"))[0]
        assert (shown["mtu"], shown["addr_info"][0]["local"]) == (4200, f"10.9.0.1{number}")


def test_private_keys_are_private(pair: Pair) -> None:
    machine = pair.machines[0]
    modes = machine.tell("cd /etc/nearmetal && stat -c '%a %U %n' seed.json ssh_host_key node_key")
    assert modes.splitlines() == ["600 root seed.json", "600 root ssh_host_key", "600 mpi node_key"]
    open_files = machine.tell(
        "find /etc /run /var /tmp -xdev -type f -perm /044 -print0 "
        "| xargs -0 grep -l 'OPENSSH PRIVATE KEY' || true",
        "root",
    )
    assert open_files == ""
    # Containers get all of /run/nearmetal: not even root's files there may hold a key.
    machine.tell("! grep -rq 'OPENSSH PRIVATE KEY' /run/nearmetal", "root")
    public = json.loads(machine.tell("cat /etc/nearmetal/node.json"))
    assert set(public["ssh"]) == {"authorized_keys", "node_key_public"}
    assert [
        n["name"] for n in json.loads(machine.tell("cat /etc/nearmetal/cluster.json"))["nodes"]
    ] == [*NAMES]


def test_nodes_reach_each_other_by_the_key_of_the_cluster(pair: Pair) -> None:
    first, second = pair.machines
    assert first.tell("ssh vm2 hostname") == "vm2"
    assert second.tell("ssh 10.9.0.11 id -un") == "mpi"
    assert first.run("ssh root@vm2 true").returncode != 0


def test_the_segment_is_where_the_provider_looks(pair: Pair) -> None:
    for part, machine in enumerate(pair.machines):
        told = config(machine)
        assert told == {
            "version": "1",
            "device": "ivshmem",
            "own": "/dev/nearmetal/own",
            "all": "/dev/nearmetal/all",
            "part": str(part),
            "token": pair.shared.token,
            "lock": "/run/nearmetal/segment.lock",
            "integrity": "enforced",
            "numa": "-1",
            "vcpu_numa": str(part),
            "endpoints": "1",
            "distances": " ".join(map(str, pair.shared.distances(part))),
        }
        modes = machine.tell("stat -L -c '%a %G' /dev/nearmetal/own /dev/nearmetal/all")
        assert modes.splitlines() == ["660 nearmetal", "440 nearmetal"]
        seen = json.loads(machine.tell("nearmetal-segment show --json /dev/nearmetal/all"))
        assert (seen["token"], seen["nr_parts"]) == (pair.shared.token, 3)


def test_a_word_in_ones_own_part_is_seen_by_the_neighbour(pair: Pair) -> None:
    first, second = pair.machines
    # Far from what the provider keeps at the begin of a part.
    inside = PART - 64
    first.tell(f"/tmp/poke write /dev/nearmetal/own {inside} 4711")
    at = pair.shared.offset(0) + inside
    assert second.tell(f"/tmp/poke read /dev/nearmetal/all {at}") == "4711"
    assert pair.shared.word(at) == 4711


def test_containers_get_the_devices_and_one_lock(pair: Pair) -> None:
    machine = pair.machines[0]
    options = machine.tell("nearmetal-guest container /dev/shm/job", "root").splitlines()
    for name, rights in (("own", ""), ("all", ",readonly=true")):
        device = machine.tell(f"readlink -f /dev/nearmetal/{name}")
        assert device.endswith("/resource2")
        place = f"source={device},destination=/dev/nearmetal/{name}{rights}"
        assert f"--mount=type=bind,{place}" in options
    assert {
        "--volume=/run/nearmetal:/run/nearmetal",
        "--user=1000:1000",
        "--group-add=960",
        "--env=NEARMETAL_RUNDIR=/dev/shm/job",
    } < set(options)
    assert machine.tell("stat -c '%a %U' /dev/shm/job", "root") == "700 mpi"
    refused = machine.run("nearmetal-guest container /tmp/job", "root")
    assert (refused.returncode, refused.stdout) == (1, b""), refused
    assert b"/tmp/job is not in /dev/shm" in refused.stderr


def test_the_mapping_is_measured_and_taken(pair: Pair) -> None:
    segment.is_measured_and_taken(pair.machines, pair.shared)


def test_two_machines_meet_in_the_segment(pair: Pair) -> None:
    segment.is_where_they_meet(pair.machines, pair.shared)


def test_a_write_into_a_neighbours_part_is_dropped(pair: Pair) -> None:
    first, second = pair.machines
    inside = PART - 128
    at = pair.shared.offset(1) + inside
    second.tell(f"/tmp/poke write /dev/nearmetal/own {inside} 42")
    # Neither the user nor root may try; a root that gives itself the right finds that the hypervisor
    # drops every byte: of the neighbour's part, of the host's page.
    for who in ("mpi", "root"):
        assert (
            b"Permission denied"
            in first.run(f"/tmp/poke write /dev/nearmetal/all {at} 66", who).stderr
        )
    first.tell("chmod 0660 $(readlink -f /dev/nearmetal/all)", "root")
    page = pair.shared.word(0)
    assert first.tell(f"/tmp/poke write /dev/nearmetal/all {at} 666", "root") == "42"
    assert first.tell("/tmp/poke write /dev/nearmetal/all 0 666", "root") == str(page)
    first.tell("chmod 0440 $(readlink -f /dev/nearmetal/all)", "root")
    assert second.tell(f"/tmp/poke read /dev/nearmetal/own {inside}") == "42"
    assert (pair.shared.word(at), pair.shared.word(0)) == (42, page)
    segment.tries_what_the_hypervisor_does(first, pair.shared)


def test_plain_mpirun_uses_the_provider(pair: Pair) -> None:
    first = pair.machines[0]
    told = first.tell("mpirun -n 2 --map-by node /tmp/hello")
    assert "hello from 2 ranks: every token came back" in told
    # The provider is what carried it: without it nothing is left to carry it.
    done = first.run(
        "FI_PROVIDER_PATH=/none mpirun -n 2 --map-by node -x FI_PROVIDER_PATH /tmp/hello"
    )
    assert done.returncode != 0


def test_an_mpi_job_goes_through_the_segment(pair: Pair) -> None:
    segment.carries_random_traffic(pair.machines)
    # With the unit's configuration out of the way there is no segment, and so no way.
    without = "-x NEARMETAL_CHANNELS=self,segment -x NEARMETAL_SEGMENT=/none"
    assert pair.machines[0].run(f"mpirun -n 2 --map-by node {without} /tmp/hello").returncode != 0


def test_soft_roce_is_there_when_asked(pair: Pair) -> None:
    first, second = pair.machines
    for machine in (first, second):
        assert "state ACTIVE" in machine.tell("rdma link show rxe_eth0/1")
        assert "rxe_eth0" in machine.tell("ibv_devices")


def test_a_changed_cluster_reaches_a_running_node(pair: Pair) -> None:
    second = pair.machines[1]
    names = (*NAMES, "vm3")
    seed = pair.yard.seed("vm2", names, segment=pair.shared.seed(1))
    boot = second.tell("cat /proc/sys/kernel/random/boot_id")
    second.tell("nearmetal-guest update", "root", stdin=json.dumps(seed).encode())
    assert second.tell("getent hosts vm3").split() == ["10.9.0.13", "vm3"]
    assert second.tell("tail -n 1 /etc/nearmetal/hostfile") == "vm3 slots=1"
    assert second.tell("cat /proc/sys/kernel/random/boot_id") == boot
    refused = second.run("nearmetal-guest update", "root", stdin=b"{no json")
    assert refused.returncode != 0
    assert b"nothing was changed" in refused.stderr
    assert second.tell("getent hosts vm3").split() == ["10.9.0.13", "vm3"]


def test_seeds_are_read_alike_by_jq_and_by_python(pair: Pair, tmp_path: Path) -> None:
    """A cloud image may have only one of the two; the built image has jq, this machine Python."""
    path, script = tmp_path / "seed.json", ROOT / "nearmetal/share/guest/unit/seed_split.py"
    path.write_text(json.dumps(pair.yard.seed("vm1", NAMES, segment=None)))
    by_jq = pair.machines[0].tell(
        "cat >/tmp/seed.json && . /usr/lib/nearmetal/seed.sh && seed_split /tmp/seed.json /tmp/lines"
        " && cat /tmp/lines",
        stdin=path.read_bytes(),
    )
    by_python = subprocess.run(
        [sys.executable, "-I", script, path],
        check=True,
        timeout=60,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert sorted(by_jq.splitlines()) == sorted(by_python.stdout.strip().splitlines())


def test_a_machine_without_a_seed_says_so(alone: dict[str, Machine]) -> None:
    words = alone["no seed"].wait_for(FAILED_MARK)
    assert "no seed: the host gave none by firmware" in words


def test_another_hosts_segment_is_refused(alone: dict[str, Machine]) -> None:
    machine = alone["wrong segment"]
    line = machine.wait_for(FAILED_MARK)
    assert "vm1: segment: the device shows another segment than the seed's" in line
    # sshd runs even then, so that a person can look.
    machine.reachable()
    assert machine.tell("test -e /run/nearmetal/segment.conf || echo none") == "none"


def test_a_probe_needs_no_disk_and_ends(alone: dict[str, Machine]) -> None:
    machine = alone["probe"]
    machine.wait_for("nearmetal: probe ok")
    assert machine.process.wait(120) == 0


def test_a_missing_root_disk_is_named(alone: dict[str, Machine]) -> None:
    words = alone["no disk"].wait_for(FAILED_MARK)
    assert "no disk with the serial number nearmetal-root" in words
