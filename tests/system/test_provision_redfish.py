# SPDX-License-Identifier: Apache-2.0
"""The BIOS stage over real HTTPS against sushy-tools' emulator."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import requests

from nearmetal.errors import HostError, PasswordError
from nearmetal.provision.model import HostFacts
from nearmetal.provision.planner import HostPlan, plan_host
from nearmetal.provision.redfish import Redfish
from nearmetal.provision.steps import SetBios, Wait
from nearmetal.spec.hosts import Bmc, parse_hosts

pytestmark = pytest.mark.system

NOW = {"ProcVirtualization": "Disabled", "SriovGlobalEnable": "Disabled", "BootMode": "Bios",
       "QuietBoot": True, "NumCores": 16}  # fmt: skip
PASSWORD = "correct horse"

FILE = """\
version: 1
name: bmc
hosts:
  - nodes: kvm1
    platform: linux
    bmc: {address: "https://127.0.0.1:PORT", user: admin, vendor: dell, ca: CA,
          password: {file: SECRET}}
    bios: {virtualization: true, sriov: true, attributes: {BootMode: Uefi, QuietBoot: true}}
"""


class Lab:
    """The emulator, and a hosts file that fits it."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.port = port
        self.text = FILE.replace("PORT", str(port)).replace("CA", str(directory / "cert.pem"))
        self.text = self.text.replace("SECRET", str(directory / "secret"))
        [(self.name, self.group)] = parse_hosts(self.text).each()
        assert self.group.bmc is not None
        self.bmc: Bmc = self.group.bmc
        self.redfish = Redfish(self.name, self.bmc)

    def plan(self) -> HostPlan:
        return plan_host(
            self.name, self.group, HostFacts("kvm1", "linux", bios=self.redfish.read())
        )

    def bios(self) -> dict[str, Any]:
        return json.loads((self.directory / "bios.json").read_text())  # type: ignore[no-any-return]

    def restart(self) -> None:
        base = f"https://127.0.0.1:{self.port}/redfish/v1/Systems"
        access = {"auth": ("admin", PASSWORD), "verify": str(self.directory / "cert.pem")}
        systems = requests.get(base, timeout=30, **access).json()["Members"]  # type: ignore[arg-type]
        target = f"https://127.0.0.1:{self.port}{systems[0]['@odata.id']}"
        done = requests.post(f"{target}/Actions/ComputerSystem.Reset", timeout=30,
                             json={"ResetType": "ForceRestart"}, **access)  # type: ignore[arg-type]  # fmt: skip
        assert done.ok, done.text


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bmc")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=bmc", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", made / "key.pem", "-out", made / "cert.pem"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    (made / "users").write_text(f"admin:{hashed}\n")
    (made / "secret").write_text(PASSWORD + "\n")
    (made / "secret").chmod(0o600)
    return made


@pytest.fixture(scope="module")
def port(directory: Path) -> Iterator[int]:
    (directory / "bios.json").write_text(json.dumps({"now": NOW, "staged": {}}))
    program = Path(__file__).with_name("redfish_bmc.py")
    with (directory / "log").open("wb") as log, subprocess.Popen(
        [sys.executable, program, directory], stdout=subprocess.PIPE, stderr=log, text=True
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.strip().isdigit(), (directory / "log").read_text()
            yield int(line)
        finally:
            process.kill()


@pytest.fixture
def lab(directory: Path, port: int) -> Lab:
    (directory / "bios.json").write_text(json.dumps({"now": NOW, "staged": {}}))
    return Lab(directory, port)


def test_settings_are_staged_and_in_force_after_the_restart(lab: Lab) -> None:
    first = lab.plan()
    assert first.refusals == ()
    wanted = {s.action.attribute: s.action.value for s in first.steps
              if isinstance(s.action, SetBios)}  # fmt: skip
    assert wanted == {
        "ProcVirtualization": "Enabled", "SriovGlobalEnable": "Enabled", "BootMode": "Uefi",
    }  # fmt: skip
    assert first.reboots == 1
    lab.redfish.stage(wanted)
    assert lab.bios()["now"] == NOW
    second = lab.plan()
    assert {type(s.action) for s in second.steps} == {Wait}
    assert second.reboots == 1
    lab.restart()
    assert lab.plan().steps == ()
    assert lab.bios()["now"] == NOW | wanted


def test_the_registry_of_the_bmc_is_read(lab: Lab) -> None:
    found = lab.redfish.read()
    assert found.attributes == NOW
    assert found.vendor == "dell"


def test_a_wrong_password_is_said_once_and_without_it(lab: Lab, directory: Path) -> None:
    before = (directory / "log").read_text().count(" 401 ")
    wrong = directory / "wrong"
    wrong.write_text("hunter2\n")
    wrong.chmod(0o600)
    [(_, group)] = parse_hosts(lab.text.replace("/secret", "/wrong")).each()
    assert group.bmc is not None
    with pytest.raises(HostError, match="refuses user admin") as caught:
        Redfish("kvm1", group.bmc).read()
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"
    assert (directory / "log").read_text().count(" 401 ") == before + 1


def test_a_password_that_others_may_read_is_not_used(lab: Lab, directory: Path) -> None:
    (directory / "open").write_text(PASSWORD)
    (directory / "open").chmod(0o644)
    [(_, group)] = parse_hosts(lab.text.replace("/secret", "/open")).each()
    assert group.bmc is not None
    with pytest.raises(PasswordError, match="others may read"):
        Redfish("kvm1", group.bmc).read()


def test_a_certificate_that_nobody_vouches_for_is_refused(lab: Lab, directory: Path) -> None:
    text = lab.text.replace(f"ca: {directory / 'cert.pem'},", "")
    [(_, group)] = parse_hosts(text).each()
    assert group.bmc is not None
    with pytest.raises(HostError, match=r"(?i)certificate|ssl"):
        Redfish("kvm1", group.bmc).read()


def test_a_bmc_that_is_not_there_is_named(lab: Lab) -> None:
    [(_, group)] = parse_hosts(lab.text.replace(str(lab.port), "9")).each()
    assert group.bmc is not None
    with pytest.raises(HostError, match=r"kvm1: https://127\.0\.0\.1:9"):
        Redfish("kvm1", group.bmc).read()


def test_which_system_is_meant_must_be_clear(lab: Lab) -> None:
    [(_, group)] = parse_hosts(lab.text.replace("vendor: dell", "vendor: dell, system: n7")).each()
    assert group.bmc is not None
    with pytest.raises(HostError, match="0 systems fit"):
        Redfish("kvm1", group.bmc).read()
