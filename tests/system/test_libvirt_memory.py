# SPDX-License-Identifier: Apache-2.0
"""Memory of huge pages, memory that is locked, an IOMMU: as kernel and guest see them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.system import hypervisors
from tests.system.virtual_clusters import Place, places

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.timeout(900),
]

hypervisors.need()

RESERVED = Path("/proc/sys/vm/nr_hugepages")
MIB = 1 << 20
NODE = "nodes: [{name: n1, memory: 512 MiB, hugepages: 2 MiB, viommu: true}]"
LOCKED = "nodes: [{name: n1, memory: 512 MiB, locked: true}]"
UNLIMITED = (1 << 53) - 1
"""What libvirt lets a machine lock whose memory is locked, in bytes."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    before = RESERVED.read_text()
    try:
        with places(tmp_path) as found:
            yield found
    finally:
        RESERVED.write_text(before)


def free_pages() -> int:
    found = re.search(r"^HugePages_Free: +(\d+)$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def reserve(pages: int) -> None:
    """Have so many free pages of 2 MiB."""
    RESERVED.write_text(str(int(RESERVED.read_text()) - free_pages() + pages))
    if free_pages() < pages:
        pytest.skip(f"the kernel has {free_pages()} of {pages} huge pages to give")


def may_lock() -> bool:
    """Whether root may raise that limit here: in some containers it may not."""
    asked = f"import resource as r; r.setrlimit(r.RLIMIT_MEMLOCK, ({UNLIMITED}, {UNLIMITED}))"
    done = subprocess.run([sys.executable, "-c", asked], check=False, stderr=subprocess.DEVNULL)
    return done.returncode == 0


def locked(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmLck:\s+(\d+) kB$", text, re.MULTILINE)
    assert found
    return int(found[1]) << 10


def test_memory_is_of_huge_pages_behind_an_iommu(place: Place) -> None:
    reserve(256)
    spec = place.write(place.spec(NODE))
    code, text = place.run("up", spec)
    assert code == 0, text
    assert free_pages() == 0
    code, text = place.run("exec", spec, "n1", "--", "ls", "/sys/firmware/acpi/tables/DMAR")
    assert code == 0, text
    code, text = place.run("down", "--yes", spec)
    assert code == 0, text
    assert free_pages() == 256


def test_pages_that_are_not_there_are_told(place: Place) -> None:
    reserve(100)
    code, text = place.run("up", place.write(place.spec(NODE)))
    assert code != 0
    assert "vm.nr_hugepages" in text
    assert place.host.machines() == []
    assert free_pages() == 100


def test_memory_is_locked_or_it_is_told_why_not(place: Place) -> None:
    spec = place.write(place.spec(LOCKED))
    code, text = place.run("up", spec)
    if may_lock():
        assert code == 0, text
        (pid,) = place.host.machines()
        assert locked(pid) >= 512 * MIB
    else:
        assert code != 0
        assert "CAP_SYS_RESOURCE" in text
        assert place.host.machines() == []
