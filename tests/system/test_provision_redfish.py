# SPDX-License-Identifier: Apache-2.0
"""The BIOS stage over real HTTPS against sushy-tools' emulator."""

from collections.abc import Iterator

import pytest
import requests

from nearmetal.core.errors import HostError, PasswordError
from nearmetal.host.hosts_file import parse_hosts
from nearmetal.host.model import PlatformFacts
from nearmetal.host.plan import HostPlan, plan_host
from nearmetal.host.redfish import Redfish
from nearmetal.host.steps import SetBios, Wait
from tests.system.bmc import PASSWORD, Bmc

pytestmark = pytest.mark.system

NOW = {
    "ProcVirtualization": "Disabled",
    "SriovGlobalEnable": "Disabled",
    "BootMode": "Bios",
    "QuietBoot": True,
    "NumCores": 16,
}

FILE = """\
version: 1
name: bmc
hosts:
  - nodes: kvm1
    platform: linux
    bmc: BMC
    bios: {virtualization: true, sriov: true, attributes: {BootMode: Uefi, QuietBoot: true}}
"""


class Lab:
    """A management controller, and a hosts file that fits it."""

    def __init__(self, bmc: Bmc) -> None:
        self.bmc = bmc
        self.text = FILE.replace("BMC", bmc.spec)
        self.redfish = self.reach(self.text)
        [(self.name, self.group)] = parse_hosts(self.text).each()

    @staticmethod
    def reach(text: str) -> Redfish:
        [(name, group)] = parse_hosts(text).each()
        assert group.bmc is not None
        return Redfish(name, group.bmc)

    def plan(self) -> HostPlan:
        return plan_host(
            self.name, self.group, PlatformFacts("kvm1", "linux", bios=self.redfish.read())
        )

    def restart(self) -> None:
        base = f"https://127.0.0.1:{self.bmc.port}/redfish/v1/Systems"
        access = {"auth": ("admin", PASSWORD), "verify": str(self.bmc.folder / "cert.pem")}
        systems = requests.get(base, timeout=30, **access).json()["Members"]  # type: ignore[arg-type]
        target = f"https://127.0.0.1:{self.bmc.port}{systems[0]['@odata.id']}"
        done = requests.post(
            f"{target}/Actions/ComputerSystem.Reset",
            timeout=30,
            json={"ResetType": "ForceRestart"},
            **access,  # type: ignore[arg-type]
        )
        assert done.ok, done.text


@pytest.fixture(scope="module")
def bmc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bmc]:
    made = Bmc(tmp_path_factory.mktemp("lab") / "bmc", NOW)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def lab(bmc: Bmc) -> Lab:
    bmc.set(NOW)
    return Lab(bmc)


def test_settings_are_staged_and_in_force_after_the_restart(lab: Lab) -> None:
    first = lab.plan()
    assert first.refusals == ()
    wanted = {
        s.action.attribute: s.action.value for s in first.steps if isinstance(s.action, SetBios)
    }
    assert wanted == {
        "ProcVirtualization": "Enabled",
        "SriovGlobalEnable": "Enabled",
        "BootMode": "Uefi",
    }
    assert first.reboots == 1
    lab.redfish.stage(wanted)
    assert lab.bmc.now == NOW
    second = lab.plan()
    assert {type(s.action) for s in second.steps} == {Wait}
    assert second.reboots == 1
    lab.restart()
    assert lab.plan().steps == ()
    assert lab.bmc.now == NOW | wanted


def test_the_registry_of_the_bmc_is_read(lab: Lab) -> None:
    found = lab.redfish.read()
    assert found.attributes == NOW
    assert found.vendor == "dell"


def test_a_wrong_password_is_said_once_and_without_it(lab: Lab) -> None:
    before = lab.bmc.log.count(" 401 ")
    wrong = lab.bmc.folder / "wrong"
    wrong.write_text("hunter2\n")
    wrong.chmod(0o600)
    text = lab.text.replace("/secret", "/wrong")
    with pytest.raises(HostError, match="refuses user admin") as caught:
        lab.reach(text).read()
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"
    assert lab.bmc.log.count(" 401 ") == before + 1


def test_a_password_that_others_may_read_is_not_used(lab: Lab) -> None:
    (lab.bmc.folder / "open").write_text(PASSWORD)
    (lab.bmc.folder / "open").chmod(0o644)
    text = lab.text.replace("/secret", "/open")
    with pytest.raises(PasswordError, match="other users may read"):
        lab.reach(text).read()


def test_a_certificate_that_nobody_vouches_for_is_refused(lab: Lab) -> None:
    text = lab.text.replace(f"ca: {lab.bmc.folder}/cert.pem,", "")
    with pytest.raises(HostError, match=r"(?i)certificate|ssl"):
        lab.reach(text).read()


def test_a_bmc_that_is_not_there_is_named(lab: Lab) -> None:
    text = lab.text.replace(str(lab.bmc.port), "9")
    with pytest.raises(HostError, match=r"kvm1: https://127\.0\.0\.1:9"):
        lab.reach(text).read()


def test_which_system_is_meant_must_be_clear(lab: Lab) -> None:
    text = lab.text.replace("vendor: dell", "vendor: dell, system: n7")
    with pytest.raises(HostError, match="0 systems match"):
        lab.reach(text).read()
