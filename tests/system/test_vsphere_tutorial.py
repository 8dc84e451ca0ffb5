# SPDX-License-Identifier: Apache-2.0
"""The tutorial for vSphere: its files and commands, in their order, on a simulated vCenter."""

from __future__ import annotations

import re
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.cli.main import main
from tests.system.esxi_lab import Hosts
from tests.system.vcenter import PASSWORD, TEMPLATE, Simulator, simulator

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial-vsphere.md").read_text()
BLOCKS = re.findall(r"^```(yaml)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

CODES = {
    "host plan hosts.yaml": [3],
    "host apply hosts.yaml": [1],
    "host apply hosts.yaml --by-hand-done": [0],
    "host status hosts.yaml": [0],
    "plan cluster.yaml": [3, 0],
    "up cluster.yaml": [0],
    "status cluster.yaml": [0],
    "down cluster.yaml": [0],
    "host rollback hosts.yaml": [0],
}
"""How each command ends, as often as the page has it."""

NAMES = ("esx01.example.org", "esx02.example.org")


@pytest.fixture
def vcenter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulator]:
    monkeypatch.setenv(PASSWORD, "pass")
    monkeypatch.setenv("VCENTER_PASSWORD", "pass")
    monkeypatch.setenv("NEARMETAL_STATE_DIR", str(tmp_path / "state"))
    yield from simulator(tmp_path, *NAMES, options="", num_of_vfs=0)


def commands() -> list[tuple[str, list[str]]]:
    """Return the commands of the page, each with what it is said to print."""
    found: list[tuple[str, list[str]]] = []
    for line in (line for kind, text in BLOCKS if not kind for line in text.splitlines()):
        if line.startswith("$ nearmetal "):
            found.append((line.removeprefix("$ nearmetal "), []))
        else:
            found[-1][1].append(line)
    return found


def test_every_command_does_what_the_page_says(
    vcenter: Simulator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = vcenter.session()
    hosts = Hosts(session)
    center = session.content.rootFolder.childEntity[0]
    template = next(vm for vm in center.vmFolder.childEntity if vm.name == TEMPLATE)
    session.wait("preparing", partial(template.Rename_Task, "rocky9"))
    monkeypatch.chdir(tmp_path)
    here = f"server: 127.0.0.1\nPLACEport: {vcenter.port}\nPLACEthumbprint: '{vcenter.thumbprint}'"
    for name, block in zip(
        ("hosts.yaml", "cluster.yaml"), (text for kind, text in BLOCKS if kind), strict=True
    ):
        [indent] = re.findall(r"^( *)server: vcenter\.example\.org$", block, re.MULTILINE)
        there = here.replace("PLACE", indent)
        text = block.replace("server: vcenter.example.org", there)
        Path(name).write_text(text.replace("user: administrator@vsphere.local", "user: user"))
    codes = {command: list(expected) for command, expected in CODES.items()}
    stated = set(re.findall(r"esxi# (mlxconfig .*)", PAGE))
    for command, printed in commands():
        if command.endswith("--by-hand-done"):
            (tmp_path / "firmware").mkdir()
            for name in NAMES:
                (tmp_path / "firmware" / name).write_text("16")
        # The page's reader answers the question; a test has no terminal.
        yes = ["--yes"] if re.match("host apply|host rollback|down", command) else []
        assert main([*shlex.split(command), *yes]) == codes[command].pop(0), command
        told = "".join(capsys.readouterr())
        assert [line for line in printed if line not in told.splitlines()] == []
        if command == "host apply hosts.yaml":
            assert set(re.findall(r"mlxconfig [^;\n]*", told)) == stated
        if command == "host status hosts.yaml":
            assert [hosts.vfs(name)[:2] for name in NAMES] == [[8, 7]] * 2
    assert not any(codes.values())
    assert [hosts.vfs(name)[:2] for name in NAMES] == [[0, 0]] * 2
    session.close()
