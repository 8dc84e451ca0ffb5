# SPDX-License-Identifier: Apache-2.0
"""Parts of the vSphere backend that need no vCenter: trust, words for faults."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
from http.client import HTTPException
from pathlib import Path

import pytest
from pyVmomi import vim

from nearmetal.cluster.backends.vsphere.devices import describe, is_like, matched
from nearmetal.cluster.backends.vsphere.settings import VmAdapter
from nearmetal.cluster.backends.vsphere.workers import Workers
from nearmetal.core.errors import BackendError, Interrupted
from nearmetal.host.vcenter.session import (
    Session,
    TaskLeftError,
    explain,
    tls_context,
    without_chassis,
)
from nearmetal.host.vcenter.spec import Vcenter

DEVICE = vim.vm.device


def test_tls_is_verified_unless_one_certificate_is_named(tmp_path: Path) -> None:
    context = tls_context(Vcenter(server="vc", user="u"))
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    with pytest.raises(BackendError, match="ca_file"):
        tls_context(Vcenter(server="vc", user="u", ca_file=str(tmp_path / "none.pem")))


WITHOUT_SDK = """
import sys
sys.modules["pyVmomi"] = None
from nearmetal.cli.main import main
sys.exit(main(["plan", sys.argv[1]]))
"""


def test_a_missing_sdk_is_an_error_with_its_package(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "nearmetal/share/examples/vsphere-sriov.yaml"
    words = [sys.executable, "-c", WITHOUT_SDK, str(example)]
    env = {**os.environ, "NEARMETAL_STATE_DIR": str(tmp_path)}
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 1
    assert "backend vsphere needs a Python package that is missing" in done.stderr
    assert "pip install 'nearmetal[vsphere]'" in done.stderr


def test_a_fault_is_told_by_its_kind_with_what_helps() -> None:
    error = explain("cloning", vim.fault.DuplicateName(msg="it exists"))
    assert error.message == "cloning: DuplicateName: it exists"
    assert "rename the node" in error.hint


class Connected(Session):
    """A session that needs no vCenter to begin with."""

    def _connect(self) -> object:
        return object()


LOST = [
    HTTPException("503 Service Unavailable"),
    ConnectionResetError(),
    ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
]


@pytest.mark.parametrize("lost", LOST)
def test_a_connection_that_is_lost_is_an_error_in_words(lost: Exception) -> None:
    def work() -> None:
        raise lost

    with pytest.raises(BackendError, match="looking: the connection to vc:443 was lost") as caught:
        Connected(Vcenter(server="vc", user="u")).call("looking", work)
    assert caught.value.__cause__ is lost
    assert "continues the tasks" in caught.value.hint


class Silent(Session):
    """A session with a vCenter that does not answer."""

    def __init__(self, lost: Exception) -> None:
        super().__init__(Vcenter(server="vc", user="u"))
        self._lost = lost

    def _connect(self) -> object:
        with self._explaining("connecting"):
            raise self._lost


@pytest.mark.parametrize("lost", LOST)
def test_a_vcenter_that_starts_or_is_gone_is_an_error_in_words(lost: Exception) -> None:
    with pytest.raises(BackendError, match="cannot reach vc:443") as caught:
        Silent(lost).call("looking", object)
    assert "trust" not in caught.value.message + caught.value.hint


class EndlessTask:
    """A task whose progress ends after some looks."""

    def __init__(self, looks: int) -> None:
        self._looks, self.progress = looks, 0

    @property
    def info(self) -> object:
        self.progress = min(self.progress + 1, self._looks)
        return vim.TaskInfo(state="running", progress=self.progress)


def test_a_task_without_progress_is_left_and_a_slow_one_is_waited_for() -> None:
    task = EndlessTask(7)
    with pytest.raises(TaskLeftError, match=r"no progress for 0.3 s \(running, 7 %\)") as caught:
        Connected(Vcenter(server="vc", user="u"), stall_s=0.3).wait("cloning", lambda: task)
    assert "the task continues" in caught.value.hint


LEFT = [
    "node n1: cloning continues in vCenter",
    "  node n2: marking continues in vCenter",
    "  the next `up` or `down` waits for them",
]


def test_an_interrupt_leaves_the_task_and_names_it() -> None:
    session = Connected(Vcenter(server="vc", user="u"))
    workers = Workers(session, 2)
    first, second = EndlessTask(7), EndlessTask(7)
    workers.begin("node n1", lambda: session.wait("cloning", lambda: first))
    workers.begin("node n2", lambda: session.wait("marking", lambda: second))
    workers.begin("node n3", lambda: session.wait("cloning", lambda: EndlessTask(7)))
    while not (first.progress and second.progress):
        time.sleep(0.01)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(Interrupted) as caught:
            workers.drain()
    finally:
        signal.signal(signal.SIGALRM, before)
    workers.leave(caught.value)
    assert caught.value.hint.splitlines() == LEFT


def test_an_interrupt_between_two_machines_begins_no_other_and_names_the_task() -> None:
    session = Connected(Vcenter(server="vc", user="u"))
    workers, third = Workers(session, 2), EndlessTask(7)
    tasks = [EndlessTask(7), EndlessTask(7)]
    workers.begin("node n1", lambda: session.wait("cloning", lambda: tasks[0]))
    workers.begin("node n2", lambda: session.wait("marking", lambda: tasks[1]))
    workers.begin("node n3", lambda: session.wait("cloning", lambda: third))
    while not all(task.progress for task in tasks):
        time.sleep(0.01)
    error = Interrupted(signal.SIGINT)
    workers.leave(error)
    assert error.hint.splitlines() == LEFT
    assert third.progress == 0


def interrupt(_number: int, _frame: object) -> None:
    raise Interrupted(signal.SIGINT)


class Expiring(Connected):
    """A session that expires, and counts its logins."""

    logins = 0

    def _login(self, _content: object) -> None:
        self.logins += 1
        self._login_nr += 1


@pytest.mark.parametrize(("expiries", "logins"), [(0, 0), (1, 1), (2, 1)])
def test_an_expired_session_is_opened_again_once(expiries: int, logins: int) -> None:
    session, left = Expiring(Vcenter(server="vc", user="u")), [expiries]

    def work() -> str:
        if left[0]:
            left[0] -= 1
            raise vim.fault.NotAuthenticated
        return "done"

    if expiries > logins:
        with pytest.raises(BackendError, match="looking: NotAuthenticated"):
            session.call("looking", work)
    else:
        assert session.call("looking", work) == "done"
    assert session.logins == logins


def sriov(pf: str, group: str, *, mtu: bool) -> object:
    function = DEVICE.VirtualPCIPassthrough.DeviceBackingInfo(
        id=pf, deviceId="0", systemId="BYPASS", vendorId=0, deviceName=""
    )
    return DEVICE.VirtualSriovEthernetCard(
        key=1,
        allowGuestOSMtuChange=mtu,
        backing=DEVICE.VirtualEthernetCard.NetworkBackingInfo(deviceName=group),
        sriovBacking=DEVICE.VirtualSriovEthernetCard.SriovBackingInfo(
            physicalFunctionBacking=function
        ),
    )


def test_an_adapter_is_recognized_by_what_it_says_and_no_more() -> None:
    device = sriov("0000:3B:00.0", "pg", mtu=True)
    wanted = VmAdapter(kind="sriov", port_group="pg", pf="0000:3b:00.0")
    assert is_like(device, wanted, {})
    assert is_like(device, wanted.model_copy(update={"guest_mtu": True}), {})
    assert not is_like(device, wanted.model_copy(update={"guest_mtu": False}), {})
    assert not is_like(device, wanted.model_copy(update={"port_group": "other"}), {})
    assert describe(device, {}) == "sriov port_group=pg pf=0000:3b:00.0 guest_mtu=true"


def test_equal_adapters_are_counted() -> None:
    device = sriov("0000:3b:00.0", "pg", mtu=False)
    wanted = VmAdapter(kind="sriov", port_group="pg", pf="0000:3b:00.0")
    disk = DEVICE.VirtualDisk(key=2)
    assert matched([device, disk], [wanted, wanted], {}) == ([], [wanted])
    assert matched([device, disk], [], {}) == ([device], [])


@pytest.mark.parametrize(
    ("backing", "text"),
    [
        (DEVICE.VirtualPCIPassthrough.VmiopBackingInfo(vgpu="p"), "vgpu profile=p"),
        (
            DEVICE.VirtualPCIPassthrough.DynamicBackingInfo(
                deviceName="",
                customLabel="rdma",
                allowedDevice=[
                    DEVICE.VirtualPCIPassthrough.AllowedDevice(vendorId=0x15B3, deviceId=0x1019)
                ],
            ),
            "dynamic models=15b3:1019 label=rdma",
        ),
        (
            DEVICE.VirtualPCIPassthrough.DeviceBackingInfo(
                id="0000:3b:00.0", deviceId="0", systemId="s", vendorId=0, deviceName=""
            ),
            "passthrough device=0000:3b:00.0",
        ),
    ],
)
def test_devices_of_the_host_are_told_as_the_spec_says_them(backing: object, text: str) -> None:
    assert describe(DEVICE.VirtualPCIPassthrough(key=1, backing=backing), {}) == text


NIC = b'<VirtualDevice xsi:type="VirtualVmxnet3"><key>4000</key></VirtualDevice>'
GPU = b'<VirtualDevice xsi:type="VirtualPCIPassthrough"></VirtualDevice>'
UNKNOWN = b'<VirtualDevice xsi:type="VirtualDiskette"><key>1</key></VirtualDevice>'
DISK = (
    b'<VirtualDevice xsi:type="VirtualDisk"><key>2000</key>\n<backing '
    b'xsi:type="VirtualDiskFlatVer2BackingInfo"><fileName>a</fileName></backing></VirtualDevice>'
)
KEYBOARD = (
    b'<VirtualDevice xmlns:v="urn:vim25" xsi:type="v:VirtualKeyboard"><key>6</key></VirtualDevice>'
)
BARE = b'<VirtualDevice xsi:type="VirtualCdrom"/>'


def test_the_chassis_is_cut_from_lists_of_devices_and_nothing_else() -> None:
    devices = [DISK, NIC, KEYBOARD, UNKNOWN, BARE, DISK, GPU, KEYBOARD]
    answer = b"<val>" + b"".join(devices) + b"</val>"
    kept = b"".join([NIC, UNKNOWN, BARE, GPU])
    assert without_chassis(answer) == b"<val>" + kept + b"</val>"
    config = b'<device xsi:type="VirtualDisk"><key>2000</key></device>'
    said = b"<name>&lt;VirtualDevice xsi:type=&quot;VirtualDisk&quot;&gt;</name>"
    cut_short = DISK.removesuffix(b"</VirtualDevice>")
    for text in (config, said, cut_short, b""):
        assert without_chassis(text) == text
