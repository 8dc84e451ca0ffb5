# SPDX-License-Identifier: Apache-2.0
"""Machines that EFI boots: the kernel of the built image, the MMIO window, and their variables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.cluster.backends.libvirt.efi import LIST, choose_firmware
from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
from nearmetal.cluster.model import addresses
from nearmetal.cluster.spec import load_spec
from nearmetal.cluster.ssh_nodes import Nodes
from nearmetal.core.process import Command, LocalRunner
from tests.system import hypervisors
from tests.system.need import lacking
from tests.system.virtual_clusters import Place, places

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.root, pytest.mark.timeout(1800)]

hypervisors.need()

if choose_firmware(LocalRunner().check(Command(("sh", "-c", LIST)), timeout_s=60).text) is None:
    lacking("no EFI firmware is installed: `make setup-vm` brings ovmf")

GIB = 1 << 30
WIDE = "{name: n1, memory: 512 MiB, firmware: efi, mmio: 64 GiB}"
PLAIN = "{name: n2, memory: 512 MiB, firmware: efi}"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with places(tmp_path) as found:
        yield found


def write(place: Place, *nodes: str) -> str:
    segment = "segment: {part: 2 MiB, parts: 2}"
    return place.write(place.spec(f"{segment}, nodes: [{', '.join(nodes)}]"))


def windows(place: Place, spec: str, node: str) -> int:
    """Return the size of the 64-bit windows of the first PCI bus, as the guest's kernel has them."""
    read = load_spec(Path(spec))
    assert isinstance(read, LibvirtSpec)
    where = {node: (addresses(read)[1][node], None)}
    nodes = Nodes(place.state / "clusters" / "f", where, LocalRunner())
    text = nodes.check(node, "cannot read its resources", ["cat", "/proc/iomem"])
    nodes.close()
    found = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) : PCI Bus 0000:00$", text, re.MULTILINE)
    ranges = [(int(start, 16), int(end, 16)) for start, end in found]
    return sum(end - start + 1 for start, end in ranges if start >= 4 * GIB)


def test_machines_boot_by_efi_with_the_window_of_their_spec(place: Place) -> None:
    spec = write(place, WIDE, PLAIN)
    code, text = place.run("up", spec)
    assert code == 0, text
    assert "node n1: 64-bit MMIO window of 64 GiB: the spec asks for it" in text
    for node in ("n1", "n2"):
        code, text = place.run(
            "exec", spec, node, "--", "cat", "/sys/firmware/efi/fw_platform_size"
        )
        assert code == 0, text
        assert "64" in text.split()
    assert windows(place, spec, "n1") >= 64 * GIB
    assert windows(place, spec, "n2") < 64 * GIB

    # A machine has its own variables as long as it exists; changes of others leave them alone.
    own = place.state / "clusters" / "f" / "hosts" / "h1"
    files = [own / f"{node}.nvram" for node in ("n1", "n2")]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
    before = files[0].stat().st_ino
    code, text = place.run("up", write(place, WIDE, PLAIN.replace("efi", "bios")))
    assert code != 0
    assert "only at its start" in text
    assert "--replace" in text
    assert [file.exists() for file in files] == [True, True]
    code, text = place.run("up", "--replace", "--yes", write(place, WIDE))
    assert code == 0, text
    assert [file.exists() for file in files] == [True, False]
    assert files[0].stat().st_ino == before
    code, text = place.run("down", "--yes", spec)
    assert code == 0, text
    assert not own.exists()
