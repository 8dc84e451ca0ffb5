# SPDX-License-Identifier: Apache-2.0
"""A host that only ssh reaches is asked about its VFs: by a real ssh, of a real process there."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.system import hypervisors
from tests.system.test_libvirt_remote import ADDRESS, AS_CLIENT, Far, far_host
from tests.system.virtual_clusters import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.root, pytest.mark.full, pytest.mark.timeout(600)]

hypervisors.need()

ASK = f"""
from pathlib import Path
from nearmetal.cluster.backends.libvirt.hosts import HostShell
from nearmetal.cluster.backends.libvirt.vfs import vfs_of
from nearmetal.core.errors import NearmetalError
from nearmetal.core.process import LocalRunner
from nearmetal.host.vf.request import VfRequest
shell = HostShell("there", "qemu+ssh://root@{ADDRESS}/system", LocalRunner())
vfs = vfs_of("far", shell, Path("/here"), "/there")
try:
    print(vfs.offers({{"n1": VfRequest(vlan=7)}})["n1"].problem)
    vfs.give_back("n1")
    vfs.take("n1", VfRequest(), frozenset())
except NearmetalError as error:
    print(error.message)
"""

# The machine of the tests gets no command `nearmetal`: the far host alone has it.
INSTALL = """
set -e
mkdir "$1/private/bin" "$1/private/bin.work"
mount -t overlay -o "lowerdir=/usr/bin,upperdir=$1/private/bin,workdir=$1/private/bin.work" bin /usr/bin
cat >/usr/bin/nearmetal
chmod 755 /usr/bin/nearmetal
"""

NEARMETAL = f"""\
#!/bin/sh
cd {ROOT} && exec {sys.executable} -m nearmetal "$@"
"""


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    with far_host(tmp_path_factory.mktemp("far")) as (made, _):
        yield made


def ask(far: Far) -> list[str]:
    enter = ["unshare", "-m", "--propagation", "slave", "sh", "-c", AS_CLIENT, "sh"]
    argv = [*enter, str(far.folder / "config.d"), sys.executable, "-c", ASK]
    done = subprocess.run(
        argv, cwd=ROOT, check=True, stdout=subprocess.PIPE, timeout=300, text=True
    )
    return done.stdout.splitlines()


def test_a_far_host_without_nearmetal_is_named(far: Far) -> None:
    (line,) = ask(far)
    assert "host there: its VFs are given out by nearmetal there" in line


def test_a_far_host_answers_about_its_own_adapters(far: Far) -> None:
    """It has none that can give a VF, and says so; it keeps no ledger for that."""
    far.tell("sh", "-c", INSTALL, "sh", str(far.host.directory), stdin=NEARMETAL.encode())
    offered, refused = ask(far)
    assert offered.startswith("node n1 of cluster far: ")
    assert refused.startswith("node n1: host there: ")
    assert far.tell("sh", "-c", "ls /var/lib/nearmetal/host 2>/dev/null || echo none") == "none\n"
