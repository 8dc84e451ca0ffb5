# SPDX-License-Identifier: Apache-2.0
"""The services of the tests end with whoever has started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("openstack")

pytestmark = [pytest.mark.system, pytest.mark.root, pytest.mark.timeout(300)]

STARTER = """
import sys
from pathlib import Path
from tests.system.openstack_cloud import services
with services(Path(sys.argv[1])):
    pass
"""


def members(namespace: str) -> dict[int, str]:
    """Return the command lines of all processes in a PID namespace."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str((process / "ns" / "pid").readlink()) == namespace:
                found[int(process.name)] = (process / "cmdline").read_bytes().decode()
        except OSError:
            continue
    return found


def namespace_below(pid: int) -> str | None:
    """Return the PID namespace of a grandchild of a process; None: it has none of its own."""
    own = Path("/proc/self/ns/pid").readlink()
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        for inner in Path(f"/proc/{child}/task/{child}/children").read_text().split():
            namespace = Path(f"/proc/{inner}/ns/pid").readlink()
            if namespace != own:
                return str(namespace)
    return None


def test_sigkill_of_the_starter_ends_every_service(tmp_path: Path) -> None:
    words = [sys.executable, "-c", STARTER, str(tmp_path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(root)}) as starter:
        try:
            end = time.monotonic() + 60
            namespace = None
            while namespace is None or len(members(namespace)) < 4:
                assert time.monotonic() < end
                assert starter.poll() is None
                time.sleep(0.2)
                namespace = namespace or namespace_below(starter.pid)
            lines = "".join(members(namespace).values())
            assert "tests.openstack.cloud" in lines
        finally:
            starter.send_signal(signal.SIGKILL)
    end = time.monotonic() + 30
    while members(namespace):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert not Path("/run/nearmetal-openstack").exists()
