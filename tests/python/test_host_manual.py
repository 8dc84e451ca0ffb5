# SPDX-License-Identifier: Apache-2.0
"""The manual of hosts files has every key, with its default and its words."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from nearmetal.config.password import PasswordSource
from nearmetal.host import hosts_file as hosts
from nearmetal.host.stages.bios import VENDORS
from nearmetal.host.vcenter.spec import Vcenter

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "nearmetal/share/man" / "nearmetal-hosts.md").read_text()

TABLES: dict[str, type[BaseModel]] = {
    "The file": hosts.HostsFile,
    "limits": hosts.RebootLimits,
    "hosts": hosts.HostGroup,
    "ssh": hosts.Ssh,
    "bmc": hosts.Bmc,
    "password": PasswordSource,
    "bios": hosts.Bios,
    "adapters": hosts.Adapter,
    "ports": hosts.Port,
    "image": hosts.FirmwareImage,
    "passthrough": hosts.Passthrough,
    "kernel": hosts.KernelSettings,
    "hugepages": hosts.Hugepages,
    "packages": hosts.EsxiPackage,
    "power": hosts.Power,
    "slurm": hosts.Slurm,
    "vcenter": Vcenter,
    "esxi": hosts.Esxi,
}


def rows(model: type[BaseModel]) -> list[str]:
    found = []
    for name, entry in model.model_fields.items():
        default = entry.default
        shown = "" if default in (PydanticUndefined, None) else f"`{default}`"
        if entry.is_required():
            shown = "required"
        found.append(f"| `{name}` | {shown} | {entry.description or ''} |")
    return found


@pytest.mark.parametrize("title", TABLES)
def test_every_key_is_in_its_table(title: str) -> None:
    section = PAGE.split(f"\n### {title}\n", 1)[1].split("\n###", 1)[0].split("\n## ", 1)[0]
    assert re.findall(r"^\| `.*$", section, re.MULTILINE) == rows(TABLES[title])


def test_every_vendor_and_its_sources_are_named() -> None:
    for vendor in VENDORS:
        section = PAGE.split("## BIOS NAMES", 1)[1]
        line = next(x for x in section.splitlines() if x.startswith(f"| {vendor.name} |"))
        assert all(source in line for source in vendor.sources)
        names = [a.name for setting in vendor.settings.values() for a in setting]
        assert [name for name in names if f"`{name}`" not in line] == []


def test_the_example_of_the_page_is_a_hosts_file() -> None:
    text = PAGE.split("## EXAMPLE", 1)[1]
    example = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    assert hosts.parse_hosts(example).name == "rack1"


@pytest.mark.parametrize(("name", "count"), [("rack1", 6), ("esxi", 16), ("kvm-connectx5", 1)])
def test_the_example_files_are_some(name: str, count: int) -> None:
    file = hosts.load_hosts(ROOT / "nearmetal/share/examples" / "hosts" / f"{name}.yaml")
    assert len(file.each()) == count
