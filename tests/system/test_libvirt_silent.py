# SPDX-License-Identifier: Apache-2.0
"""A libvirt daemon that does not answer any more, or from which no packet comes: calls end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from nearmetal.cluster.backends.libvirt.hypervisor import Hypervisor, LinkLimits
from nearmetal.core.errors import BackendError
from tests.system import hypervisors
from tests.system.test_libvirt_remote import ADDRESS, AS_CLIENT, far_host
from tests.system.virtual_clusters import ROOT, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.root, pytest.mark.timeout(300)]

hypervisors.need()

SHORT = LinkLimits(open_s=2, silent_s=1, nr_questions=3)


@pytest.fixture
def host() -> Iterator[hypervisors.Hypervisor]:
    with hypervisors.one() as made:
        yield made


def daemon(host: hypervisors.Hypervisor) -> int:
    return int((host.directory / "pid").read_text())


def test_a_silent_daemon_ends_each_call_and_each_connection(host: hypervisors.Hypervisor) -> None:
    busy, idle = Hypervisor(host.uri, SHORT), Hypervisor(host.uri, SHORT)
    began = time.monotonic()
    os.kill(daemon(host), signal.SIGSTOP)
    try:
        with pytest.raises(BackendError, match="cannot list its domains"):
            busy.domains()
        # Nothing was asked of this one: the thread of events has seen it.
        while idle.alive:
            assert time.monotonic() - began < 60
            time.sleep(0.1)
        assert 3 < time.monotonic() - began < 60
        with pytest.raises(BackendError, match="does not answer within 2 s"):
            Hypervisor(host.uri, SHORT)
    finally:
        os.kill(daemon(host), signal.SIGCONT)
    again = Hypervisor(host.uri, SHORT)
    assert again.domains() == []
    again.close()


def test_a_daemon_that_works_keeps_idle_connections(host: hypervisors.Hypervisor) -> None:
    link = Hypervisor(host.uri, SHORT)
    time.sleep(8)
    assert link.alive
    assert link.domains() == []
    link.close()


FROM_AFAR = f"""
import json, sys, time
from nearmetal.cluster.backends.libvirt.hypervisor import Hypervisor
from nearmetal.core.errors import BackendError

def timed(call):
    began, words = time.monotonic(), ""
    try:
        call()
    except BackendError as error:
        words = error.message
    return words, time.monotonic() - began

uri = "qemu+ssh://root@{ADDRESS}/system"
link = Hypervisor(uri)
print(json.dumps(timed(link.domains)), flush=True)
sys.stdin.readline()
print(json.dumps(timed(link.domains)), flush=True)
print(json.dumps(timed(lambda: Hypervisor(uri))), flush=True)
sys.stdin.readline()
print(json.dumps(timed(lambda: Hypervisor(uri).domains())), flush=True)
"""


@pytest.mark.full
def test_a_network_that_drops_packets_ends_each_call_and_each_connection(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """With the times of the product: half a minute for a call, a minute for a connection."""
    with far_host(tmp_path) as (far, _):
        enter = ["unshare", "-m", "--propagation", "slave", "sh", "-c", AS_CLIENT, "sh"]
        with subprocess.Popen(
            [*enter, str(tmp_path / "config.d"), sys.executable, "-c", FROM_AFAR],
            env=environment(tmp_path),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            assert json.loads(client.stdout.readline())[0] == ""
            with hypervisors.cut_off(far.host):
                client.stdin.write("\n")
                client.stdin.flush()
                call, connection = (json.loads(client.stdout.readline()) for _ in range(2))
            client.stdin.write("\n")
            client.stdin.flush()
            again = json.loads(client.stdout.readline())
            assert client.wait(60) == 0
    record_property("call and connection", (call, connection))
    assert ADDRESS in call[0]
    assert 20 < call[1] < 60
    assert ADDRESS in connection[0]
    assert connection[1] < 90
    assert again[0] == ""
