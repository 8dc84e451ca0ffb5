# SPDX-License-Identifier: Apache-2.0
"""`host apply` and a real slurmctld: drained, waited for, resumed. The host itself is a model."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nearmetal.core.errors import HostError
from nearmetal.core.process import Command, Completed, LocalRunner
from nearmetal.host.apply import Applier, Patience
from nearmetal.host.hosts_file import parse_hosts
from nearmetal.host.slurm import SlurmTools
from tests.python.provision_lab import LabReach
from tests.python.test_host_apply import ONE, Rebooting, steps
from tests.system.slurm_site import NODES, SlurmSite, need, slurm_site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.root,
    pytest.mark.timeout(600),
]

need()

NODE = NODES[0]
FILE = ONE.replace("    kernel:", f"    slurm: {{node: {NODE}, drain: DRAIN}}\n    kernel:")
HANG_S = 120.0


class AtSite(LocalRunner):
    """Commands where jobs are submitted."""

    def __init__(self, site: SlurmSite) -> None:
        self.site = site

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        argv = tuple(self.site.command("root", *command.argv))
        there = replace(command, argv=argv, env=self.site.environment("root"))
        return super().run(there, timeout_s=timeout_s)


@pytest.fixture
def site() -> Iterator[SlurmSite]:
    with slurm_site() as place:
        yield place


def applier(site: SlurmSite, host: Rebooting, state: Path, drain_s: int) -> Applier:
    reach = LabReach({"kvm1": host}, SlurmTools(AtSite(site)))
    file = parse_hosts(FILE.replace("DRAIN", str(drain_s)))
    return Applier(file, reach, state, Patience(reboot_s=HANG_S, look_s=0.1))


def of_node(site: SlurmSite, form: str) -> str:
    return site.ok("root", "sinfo", "-h", "-N", "-n", NODE, "-p", "debug", "-o", form).strip()


def job(site: SlurmSite) -> str:
    """Start a job that has the node until it is ended."""
    number = site.ok(
        "root",
        "sbatch",
        "--parsable",
        "-p",
        "debug",
        "-w",
        NODE,
        "-o",
        "/dev/null",
        "--wrap",
        "sleep 600",
    ).strip()
    until(lambda: site.ok("root", "squeue", "-h", "-o", "%T", "-j", number).strip() == "RUNNING")
    return number


def until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_host_is_drained_waited_for_and_resumed(site: SlurmSite, tmp_path: Path) -> None:
    host = Rebooting(tmp_path / "kvm1").make()
    number = job(site)
    failed: list[HostError] = []

    def apply() -> None:
        try:
            applier(site, host, tmp_path / "state", 600).apply()
        except HostError as error:
            failed.append(error)

    thread = threading.Thread(target=apply)
    thread.start()
    until(lambda: of_node(site, "%T|%E") == "draining|nearmetal host: lab")
    assert (host.writes, host.reboots) == (0, 0)
    site.ok("root", "scancel", number)
    thread.join(HANG_S)
    assert not thread.is_alive()
    assert failed == []
    assert (host.vfs(), host.reboots) == (["4", "2"], 1)
    assert steps(tmp_path / "state", "done")[-1] == f"kvm1: resume {NODE} in Slurm"
    until(lambda: of_node(site, "%T") == "idle")

    # What a person drained is rebooted as well, for it is empty, and stays drained.
    site.ok("root", "scontrol", "update", f"nodename={NODE}", "state=drain", "reason=broken fan")
    (host.root / "proc/cmdline").write_text("quiet\n")
    applier(site, host, tmp_path / "state", 600).apply()
    assert host.reboots == 2
    assert of_node(site, "%T|%E") == "drained|broken fan"


def test_a_job_that_does_not_end_keeps_the_host(site: SlurmSite, tmp_path: Path) -> None:
    host = Rebooting(tmp_path / "kvm1").make()
    job(site)
    with pytest.raises(HostError, match=f"1 jobs still run on {NODE} after 0 s"):
        applier(site, host, tmp_path / "state", 0).apply()
    assert (host.writes, host.reboots) == (0, 0)
    assert of_node(site, "%T").startswith(("allocated", "mixed"))


def test_a_node_that_slurm_does_not_know_is_said(site: SlurmSite, tmp_path: Path) -> None:
    host = Rebooting(tmp_path / "kvm1").make()
    file = parse_hosts(FILE.replace("DRAIN", "0").replace(f"node: {NODE}", "node: nobody"))
    reach = LabReach({"kvm1": host}, SlurmTools(AtSite(site)))
    with pytest.raises(HostError, match=r"(?i)slurm: scontrol: .*nobody"):
        Applier(file, reach, tmp_path / "state", Patience(look_s=0)).apply()
    assert host.writes == 0
