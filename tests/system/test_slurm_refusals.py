# SPDX-License-Identifier: Apache-2.0
"""Virtual machines that a job cannot have: its user is told why, and no node is drained. Boots none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.local import user_can_read_checkout
from tests.system.slurm_site import NODES, SlurmSite, need, slurm_site

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
]

need()
if not user_can_read_checkout():
    pytest.skip("users cannot read the checkout", allow_module_level=True)


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmSite]:
    with slurm_site() as place:
        yield place


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--nm-vms-per-node=3",), "--nm-vms-per-node: this site allows 2 at most"),
        (("--nm-memory=2G",), "--nm-memory: this site allows 1024M at most"),
        (("--nm-vcpus=0",), "--nm-vcpus=0: give a number"),
        (("--nm-image=../x",), "--nm-image=../x: not a valid name"),
        # These only a node can tell.
        (("--nm-image=0123456789abcdef",), "no such image on this node; there are: default"),
        (("--nm-vms-per-node=2",), "need 2 processors on node n1, and the job has 1"),
        (("--nm-vms-per-node=2", "-c2", "--nm-segment=4M"), "2 virtual machines need 8M at least"),
    ],
)
def test_what_cannot_be_had_is_said_and_drains_nothing(
    site: SlurmSite, options: tuple[str, ...], words: str
) -> None:
    done = site.run("ann", "srun", "-w", "n1", "--nm-node=vm", *options, "hostname")
    assert done.returncode != 0
    assert words in done.stderr
    assert done.stdout == ""
    site.assert_clean()


def test_a_batch_script_fails_with_the_reason_in_its_output(site: SlurmSite) -> None:
    script = site.home("ann") / "job.sh"
    script.write_text("#!/bin/sh\necho began\n")
    done = site.run(
        "ann",
        "sbatch",
        "--wait",
        "-o",
        "out",
        "--nm-node=vm",
        "--nm-image=0123456789abcdef",
        "job.sh",
    )
    assert done.returncode != 0
    said = (site.home("ann") / "out").read_text()
    assert "no such image on this node" in said
    assert "began" not in said
    site.assert_clean()


def test_a_node_without_the_key_of_the_site_is_drained(site: SlurmSite) -> None:
    key = site.directory / "etc/slurm/slurm.key"
    kept = key.with_name("kept")
    key.rename(kept)
    try:
        done = site.run("ann", "srun", "-w", "n3", "--no-kill", "--nm-node=vm", "hostname")
        assert done.returncode != 0
        state = site.ok("root", "sinfo", "-h", "-n", "n3", "-o", "%T")
        assert state.startswith("drain")
        log = (site.directory / "log/slurmd.n3.log").read_text()
        assert f"{key}: No such file or directory: no keys for virtual machines" in log
    finally:
        kept.rename(key)
        for node in NODES:
            site.run("root", "scontrol", "update", f"NodeName={node}", "State=RESUME")
    site.assert_clean()
