# SPDX-License-Identifier: Apache-2.0
"""A virtual machine writes random bytes over all of the segment that it can write to.

Over ivshmem that is its own part: two neighbours, who exchange messages meanwhile, lose nothing and
stay in memory, and what it tries to write into their parts is dropped by the hypervisor. Over virtio-pmem it is everybody's memory, and all that can be asked for is that
nobody crashes or hangs, and that with checksums nobody is given bytes that were not sent.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.job.stats import read_stats
from tests.system.machines import IVSHMEM, ROOT, VIRTIO_PMEM, Shared, Yard, built_image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.full, pytest.mark.timeout(3600)]

PART = 64 << 20
PROGRAM = ROOT / "build/c/tests/system/scribbler"
SECONDS = 60
OTHERS = {"a": "b s", "b": "a s", "s": "a b"}
NAMES = {"a": "vm1", "b": "vm2", "s": "vm3"}


class Trio:
    """Three machines that share a segment, and what runs in them."""

    def __init__(self, yard: Yard, device: str) -> None:
        self.yard = yard
        shared = Shared.create(yard.memory("segment"), 3, PART, device)
        for part, name in enumerate(NAMES.values()):
            seed = yard.seed(name, tuple(NAMES.values()), segment=shared.seed(part))
            yard.start(name, seed, [*shared.devices(part), *yard.share_device()])
        machines = [machine.ready().mount_share() for machine in yard.machines]
        for machine in machines:
            machine.put(PROGRAM, "/tmp/scribbler")
        self.machines = dict(zip(NAMES, machines, strict=True))
        self.enforced = shared.ivshmem
        if self.enforced:
            # Only the scribbler's: what root of a machine can always do.
            self.machines["s"].tell("chmod 0660 $(readlink -f /dev/nearmetal/all)", "root")

    def scribble(self, checksum: str) -> Seen:
        """Let the three talk, one of them scribbling."""
        share = self.yard.share_folder(f"checksum-{checksum}")
        for name in ("addresses", "stats"):
            self.yard.share_folder(f"{share.name}/{name}")
        at = f"/share/{share.name}"
        together = (
            f"touch {at}/here.$(hostname); until [ -e {at}/go ]; do sleep 0.05; done; exec env"
        )
        # Emulated machines on a busy host are slow to answer.
        knobs = (
            "FI_PROVIDER=nearmetal,tcp NEARMETAL_CHANNELS=self,segment,net NEARMETAL_CLOSE_MS=1000"
            f" NEARMETAL_CONNECT_MS=60000 NEARMETAL_CHECKSUM={checksum} NEARMETAL_STATS_DIR={at}/stats"
        )

        def run(name: str) -> dict[str, dict[str, int]]:
            role, last = ("scribbler", SECONDS) if name == "s" else ("honest", SECONDS + 20)
            tries = " SCRIBBLER_ALL=/dev/nearmetal/all" if self.enforced else ""
            done = self.machines[name].run(
                f"{together} {knobs} SCRIBBLER_LOCK=/run/nearmetal/segment.lock{tries}"
                f" /tmp/scribbler {role} {last} {at}/addresses {name} {OTHERS[name]}",
                timeout_s=SECONDS + 600,
            )
            log = done.stderr.decode(errors="replace")
            assert done.returncode == 0, f"{name}: {done.returncode}\n{log[-3000:]}"
            lines = [line.split() for line in done.stdout.decode().splitlines()]
            return {
                other: dict(zip(rest[::2], map(int, rest[1::2]), strict=True))
                for other, *rest in lines
            }

        with ThreadPoolExecutor() as pool:
            jobs = {name: pool.submit(run, name) for name in NAMES}
            # Each counts until its own end, and those of the three are to be close together.
            while len(list(share.glob("here.*"))) < len(NAMES):
                assert not any(job.done() for job in jobs.values()), jobs
                time.sleep(0.05)
            (share / "go").touch()
            return Seen({name: job.result() for name, job in jobs.items()}, share)


@dataclass
class Seen:
    """What each counted with each other, and what their endpoints say of it."""

    counted: dict[str, dict[str, dict[str, int]]]
    share: Path

    def ways(self, name: str) -> dict[str, dict[str, Any]]:
        """Return by identity what the statistics of NAME's endpoint say of its peers."""
        endpoints = [one for one in read_stats(self.share / "stats") if one["host"] == NAMES[name]]
        return {peer["id"]: peer for one in endpoints for peer in one["peers"]}

    def identity(self, name: str) -> str:
        return (self.share / "addresses" / name).read_text()[4:16]


@contextmanager
def machines(tmp_path_factory: pytest.TempPathFactory, device: str) -> Iterator[Trio]:
    yard = Yard(tmp_path_factory.mktemp(device), built_image(), hub=True)
    try:
        yield Trio(yard, device)
    finally:
        yard.end()


@pytest.fixture(scope="module")
def ivshmem(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    with machines(tmp_path_factory, IVSHMEM) as trio:
        yield trio


@pytest.mark.parametrize("checksum", ["off", "on"])
def test_a_machine_harms_its_own_messages_only(ivshmem: Trio, checksum: str) -> None:
    seen = ivshmem.scribble(checksum)
    counted = seen.counted
    # Of everything that it wrote all over the segment nothing stayed.
    tries = counted["s"].pop("all")
    assert tries["tried"] > 10000, counted
    assert tries["kept"] == 0, counted
    for one, other in (("a", "b"), ("b", "a")):
        counts = counted[one][other]
        assert (counts["errors"], counts["spoiled"]) == (0, 0), counted
        assert counts["good"] > 100, counted
        if checksum == "on":
            assert counted[one]["s"]["spoiled"] == 0, counted
    ways = seen.ways("a")
    way = ways.pop(seen.identity("b"))
    assert (way["channel"], way["quarantines"]) == ("segment", 0), way
    # It spoiled the table of its own part, too, so most are told dead before their window is looked at.
    caught = [
        peer["quarantine_reason"] or peer["down_reason"]
        for peer in ways.values()
        if peer["quarantines"] or peer["down"]
    ]
    assert all(caught), ways
    assert [reason for reason in caught if not reason.endswith("closed its endpoint")], caught


def test_where_everybody_may_write_nobody_crashes_or_believes(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with machines(tmp_path_factory, VIRTIO_PMEM) as trio:
        counted = trio.scribble("on").counted
    for one, other in (("a", "b"), ("b", "a")):
        assert all(counts["spoiled"] == 0 for counts in counted[one].values()), counted
        # The network is what is left to them.
        assert counted[one][other]["good"] > 0, counted
