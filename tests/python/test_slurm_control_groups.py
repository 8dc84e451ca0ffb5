# SPDX-License-Identifier: Apache-2.0
"""Limits of virtual machines under Slurm: what is written where, by what Slurm is configured to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearmetal.core.errors import SlurmError
from nearmetal.core.process import Command, Completed, LocalRunner
from nearmetal.slurm import limits, queue
from nearmetal.slurm.limits import Limits, limits_of
from nearmetal.slurm.queue import Allocated

MIB = 1 << 20
HAS = Allocated(2, 700 * MIB)
BOTH = {
    "TaskPlugin": "task/affinity,task/cgroup",
    "ConstrainCores": "yes",
    "ConstrainRAMSpace": "yes",
    "AllowedRAMSpace": "100.0%",
}
MOUNT = Path("/sys/fs/cgroup")


class Scontrol(LocalRunner):
    """Answers as `scontrol show config` does."""

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        assert timeout_s > 0
        assert command.argv == ("scontrol", "show", "config")
        told = (
            "Configuration data as of 2026-11-22T16:00:00\nTaskPlugin              = task/cgroup\n"
            "LaunchParameters        = a=b\n\nCgroup Support Configuration:\nConstrainCores = yes\n"
        )
        return Completed(command, 0, told.encode(), b"", 0.0)


def test_the_configuration_is_slurms() -> None:
    assert queue.configuration(Scontrol()) == {
        "TaskPlugin": "task/cgroup",
        "LaunchParameters": "a=b",
        "ConstrainCores": "yes",
    }


@pytest.mark.parametrize(
    ("change", "cpus", "memory", "swap"),
    [
        ({}, 2, 700, None),
        ({"TaskPlugin": "task/affinity"}, None, None, None),
        ({"ConstrainCores": "no"}, None, 700, None),
        ({"ConstrainRAMSpace": "no", "ConstrainSwapSpace": "yes"}, 2, None, None),
        ({"AllowedRAMSpace": "110.5%"}, 2, 773.5, None),
        ({"ConstrainSwapSpace": "yes"}, 2, 700, 0),
        ({"ConstrainSwapSpace": "yes", "AllowedSwapSpace": "50.0%"}, 2, 700, 350),
        ({"AllowedRAMSpace": "(null)"}, 2, 700, None),
    ],
)
def test_a_machine_is_held_to_what_slurm_holds_tasks_to(
    change: dict[str, str], cpus: int | None, memory: float | None, swap: int | None
) -> None:
    wanted = Limits(
        cpus, None if memory is None else int(memory * MIB), None if swap is None else swap * MIB
    )
    assert limits_of(BOTH | change, HAS) == wanted


def test_what_slurm_does_not_count_is_not_limited() -> None:
    assert limits_of(BOTH, Allocated()) == Limits(None, None, None)
    assert not limits_of({}, HAS).any()


def test_what_is_written_where() -> None:
    all_three = Limits(2, 700 * MIB, 0)
    assert limits.settings(MOUNT, all_three, unified=True) == {
        "/sys/fs/cgroup": {
            "memory.max": "734003200",
            "memory.swap.max": "0",
            "cpu.max": "200000 100000",
        }
    }
    assert limits.settings(MOUNT, all_three, unified=False) == {
        "/sys/fs/cgroup/memory": {
            "memory.limit_in_bytes": "734003200",
            "memory.memsw.limit_in_bytes": "734003200",
        },
        "/sys/fs/cgroup/cpu": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "200000"},
    }
    only_cpus = limits.settings(MOUNT, Limits(1, None, None), unified=False)
    assert list(only_cpus) == ["/sys/fs/cgroup/cpu"]


def test_a_job_that_is_held_to_nothing_has_no_group(tmp_path: Path) -> None:
    made = limits.make(tmp_path, "job-7.n1", tmp_path / "nowhere", limits_of({}, HAS))
    assert made == limits.recorded(tmp_path) == limits.NONE
    assert list(tmp_path.iterdir()) == []
    limits.remove(made)


def test_a_node_where_no_group_can_be_made_says_so_and_has_none(tmp_path: Path) -> None:
    (tmp_path / "mount/memory").mkdir(parents=True)
    with pytest.raises(SlurmError, match="no control group for virtual machines") as caught:
        limits.make(tmp_path, "job-7.n1", tmp_path / "mount", limits_of(BOTH, HAS))
    assert "CgroupMountpoint of cgroup.conf" in caught.value.hint
    assert list((tmp_path / "mount/memory").iterdir()) == []


def test_the_record_names_what_a_crash_may_have_left(tmp_path: Path) -> None:
    place = tmp_path / "cpu/nearmetal/job-7.n1"
    (tmp_path / limits.RECORD).write_text(f"{tmp_path}/memory/nearmetal/job-7.n1\n{place}\n")
    place.mkdir(parents=True)
    # That of another job is there, too.
    (place.parent / "job-8.n1").mkdir()
    for _ in range(2):
        limits.remove(limits.recorded(tmp_path))
        assert [p.name for p in place.parent.iterdir()] == ["job-8.n1"]
    (place.parent / "job-8.n1").rmdir()
    limits.remove(limits.recorded(tmp_path))
