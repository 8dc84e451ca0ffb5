# SPDX-License-Identifier: Apache-2.0
"""Firmware is burnt once, whatever happens to who had it burnt, and a reboot that does not help is not repeated."""

import hashlib
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from nearmetal.core.errors import HostError
from nearmetal.host.apply import Earlier
from nearmetal.host.hosts_file import parse_hosts
from nearmetal.host.plan import HostPlan, plan_host, plan_hosts
from nearmetal.host.rollback import Rollback
from nearmetal.host.show import status_lines
from nearmetal.host.steps import Burn, Wait
from tests.python import fake_flint
from tests.python.provision_host import linux
from tests.python.provision_lab import LabReach
from tests.python.sriov_tree import Killed
from tests.python.test_host_apply import QUICK, Rebooting, applier, steps

OLD, NEW = "16.28.1002", "16.32.1010"
IMAGE = f"{fake_flint.KIND} {NEW}\n"
CARD = "0000:3b:00.0"


def text(image: Path, version: str = NEW) -> str:
    checksum = hashlib.sha256(IMAGE.encode()).hexdigest()
    return f"""\
version: 1
name: lab
hosts:
  - nodes: kvm1
    platform: linux
    adapters:
      - model: ConnectX-5
        firmware: {NEW}
        image: {{file: {image}, version: {version}, sha256: {checksum}}}
        ports: [{{}}]
"""


class Flashed(Rebooting):
    """A host whose card starts with the firmware of its flash at a reboot, unless it needs more."""

    starts_anew = True

    def _reboot(self) -> None:
        super()._reboot()
        if self.starts_anew and self.levels is not None:
            fake_flint.reset(self.levels)

    def level(self) -> list[object]:
        assert self.levels is not None
        found: list[object] = json.loads(self.levels.read_text())[CARD]
        return found


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "ConnectX5.bin"
    path.write_text(IMAGE)
    return path


@pytest.fixture
def host(tmp_path: Path) -> Flashed:
    made = Flashed(tmp_path / "kvm1")
    made.make()
    made.flash(running=OLD, stored=OLD)
    return made


@pytest.mark.parametrize(("where", "number"), [("kill_after", 1), ("kill_before", 2)])
def test_an_image_that_is_stored_is_not_burnt_again(
    host: Flashed, image: Path, tmp_path: Path, where: str, number: int
) -> None:
    state = tmp_path / "state"
    setattr(host, where, number)
    with pytest.raises(Killed):
        applier(text(image), {"kvm1": host}, state).apply()
    assert host.level() == [OLD, NEW, 1]
    setattr(host, where, 0)
    plan = applier(text(image), {"kvm1": host}, state).apply()
    [step] = plan.hosts[0].steps
    assert step.text == f"ConnectX5 at 0000:3b:00: firmware {NEW} is stored, {OLD} runs"
    assert host.level() == [NEW, NEW, 1]
    assert host.reboots == 1
    assert Earlier(state).read()["kvm1"]["burn 0000:3b:00"]["before"] == OLD


def test_a_burn_that_lost_its_ssh_is_waited_for_and_not_repeated(
    host: Flashed, image: Path, tmp_path: Path
) -> None:
    state, lock = tmp_path / "state", host.root / "run/nearmetal-host.lock"
    burn = f"echo; read go; {host.bin}/flint -d {CARD} -i {image} -y burn"
    with subprocess.Popen(
        ["flock", lock, "sh", "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with ThreadPoolExecutor(1) as pool:
            # It is planned by what the flash holds before that burn has ended.
            applied = pool.submit(applier(text(image), {"kvm1": host}, state).apply)
            while not steps(state, "begin"):
                assert not applied.done()
            process.communicate(b"\n", timeout=60)
            applied.result(timeout=60)
    assert host.level() == [NEW, NEW, 1]


def test_an_image_of_another_checksum_is_not_burnt(
    host: Flashed, image: Path, tmp_path: Path
) -> None:
    image.write_text(IMAGE + " ")
    with pytest.raises(HostError, match=r"ConnectX5\.bin: FAILED"):
        applier(text(image), {"kvm1": host}, tmp_path / "state").apply()
    assert host.level() == [OLD, OLD, 0]


def test_firmware_that_does_not_start_is_not_rebooted_for_again_and_again(
    host: Flashed, image: Path, tmp_path: Path
) -> None:
    host.starts_anew = False
    for reboots in (1, 2):
        with pytest.raises(HostError, match=f"after its reboot: .*{NEW} is stored, {OLD} runs"):
            applier(text(image), {"kvm1": host}, tmp_path / "state").apply()
        assert host.reboots == reboots
    assert host.level() == [OLD, NEW, 1]


def test_an_image_that_is_other_than_its_version_says_is_burnt_once_by_a_run(
    host: Flashed, image: Path, tmp_path: Path
) -> None:
    image.write_text(f"{fake_flint.KIND} {OLD}\n")
    wrong = text(image).replace(
        hashlib.sha256(IMAGE.encode()).hexdigest(), hashlib.sha256(image.read_bytes()).hexdigest()
    )
    with pytest.raises(HostError, match=f"after its reboot: .*firmware {OLD} -> {NEW}"):
        applier(wrong, {"kvm1": host}, tmp_path / "state").apply()
    assert host.level() == [OLD, OLD, 1]
    assert host.reboots == 1


def test_a_rollback_before_the_reboot_says_which_firmware_stays(
    host: Flashed, image: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    host.kill_after = 1
    with pytest.raises(Killed):
        applier(text(image), {"kvm1": host}, state).apply()
    rollback = Rollback(parse_hosts(text(image)), LabReach({"kvm1": host}), state, QUICK)
    rollback.apply()
    assert rollback.left == {"kvm1": ("burn 0000:3b:00",)}
    assert list(Earlier(state).read()["kvm1"]) == ["burn 0000:3b:00"]


def planned(running: str, stored: str) -> HostPlan:
    found = linux()
    card = replace(found.cards[0], firmware=running, stored=stored)
    [(name, group)] = parse_hosts(text(Path("/f"))).each()
    return plan_host(name, group, replace(found, cards=(card,)))


def test_what_waits_for_its_reboot_is_no_burn() -> None:
    plan = planned(OLD, NEW)
    assert [(step.action, bool(step.reboot)) for step in plan.steps] == [(Wait(), True)]
    assert planned(NEW, "").steps == ()
    assert planned(NEW, "16.35.2000").steps == ()


def test_an_older_image_that_another_has_stored_is_replaced_without_a_reboot() -> None:
    [step] = planned(NEW, OLD).steps
    assert isinstance(step.action, Burn)
    assert (step.text, step.reboot) == (f"ConnectX5 at 0000:3b:00: firmware {OLD} -> {NEW}", "")


def test_status_shows_both() -> None:
    found = linux()
    found = replace(found, cards=(replace(found.cards[0], stored="16.35.2000"),))
    file = parse_hosts(text(Path("/f")))
    shown = status_lines(plan_hosts(file, {"kvm1": found}), {"kvm1": found})
    assert any("(MT_0000000008, firmware 16.32.1010, 16.35.2000 stored)" in line for line in shown)
