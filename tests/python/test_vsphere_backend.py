# SPDX-License-Identifier: Apache-2.0
"""Parts of the vSphere backend that need no vCenter: passwords, trust, words for faults."""

from __future__ import annotations

import ssl
import stat
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from pyVmomi import vim

from nearmetal.backend.vsphere.devices import describe, is_like, matched
from nearmetal.backend.vsphere.secrets import find_password
from nearmetal.backend.vsphere.session import explain, tls_context
from nearmetal.errors import BackendError
from nearmetal.spec.vsphere import Adapter, PasswordSource, Vcenter

if TYPE_CHECKING:
    from pathlib import Path

DEVICE = vim.vm.device


def test_a_password_comes_from_a_variable() -> None:
    source = PasswordSource(env="P")
    assert find_password(source, "u", {"P": "secret"}) == "secret"
    with pytest.raises(BackendError, match="P is not set"):
        find_password(source, "u", {})


def test_a_password_comes_from_a_file_that_nobody_else_may_read(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("secret\n")
    path.chmod(0o600)
    source = PasswordSource(file=str(path))
    assert find_password(source, "u", {}) == "secret"
    for mode in (0o640, 0o604, 0o660):
        path.chmod(mode)
        with pytest.raises(BackendError, match="others may read") as caught:
            find_password(source, "u", {})
        assert "chmod 600" in caught.value.hint
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


@pytest.mark.parametrize("text", ["", "\n", "a\nb\n", "x" * 5000])
def test_a_password_file_holds_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "password"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(BackendError, match="does not hold one line"):
        find_password(PasswordSource(file=str(path)), "u", {})


def test_a_link_to_a_password_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BackendError, match="cannot read"):
        find_password(PasswordSource(file=str(tmp_path / "link")), "u", {})


def test_a_password_comes_from_the_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("keyring")
    fake.get_password = lambda service, user: {("s", "u"): "secret"}.get((service, user))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", fake)
    assert find_password(PasswordSource(keyring="s"), "u", {}) == "secret"
    with pytest.raises(BackendError, match="has none for s and v"):
        find_password(PasswordSource(keyring="s"), "v", {})
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(BackendError, match="no keyring here"):
        find_password(PasswordSource(keyring="s"), "u", {})


def test_tls_is_verified_unless_one_certificate_is_named(tmp_path: Path) -> None:
    context = tls_context(Vcenter(server="vc", user="u"))
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    with pytest.raises(BackendError, match="ca_file"):
        tls_context(Vcenter(server="vc", user="u", ca_file=str(tmp_path / "none.pem")))


def test_a_fault_is_told_by_its_kind_with_what_helps() -> None:
    error = explain("cloning", vim.fault.DuplicateName(msg="it exists"))
    assert error.message == "cloning: DuplicateName: it exists"
    assert "rename the node" in error.hint


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
    wanted = Adapter(kind="sriov", port_group="pg", pf="0000:3b:00.0")
    assert is_like(device, wanted, {})
    assert is_like(device, wanted.model_copy(update={"guest_mtu": True}), {})
    assert not is_like(device, wanted.model_copy(update={"guest_mtu": False}), {})
    assert not is_like(device, wanted.model_copy(update={"port_group": "other"}), {})
    assert describe(device, {}) == "sriov port_group=pg pf=0000:3b:00.0 guest_mtu=true"


def test_equal_adapters_are_counted() -> None:
    device = sriov("0000:3b:00.0", "pg", mtu=False)
    wanted = Adapter(kind="sriov", port_group="pg", pf="0000:3b:00.0")
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
