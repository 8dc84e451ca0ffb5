# SPDX-License-Identifier: Apache-2.0
"""The reading of cluster files beside that of vhpc-toolkit, as its releases gave it for our files.

`vhpc/readings.json` has the facts: what the toolkit's parser read from each file. Where the two
differ, the table DIFFERENT has both.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from nearmetal.cluster.backends.vsphere.vhpc.items import VhpcItem, machines, switches
from nearmetal.cluster.backends.vsphere.vhpc.text import (
    MACHINE_KEYS,
    SWITCH_KEYS,
    Sections,
    read_sections,
)

HERE = Path(__file__).parent / "vhpc"
FILES = {path.name: path for path in sorted(HERE.rglob("*.conf"))}
READINGS = json.loads((HERE / "readings.json").read_text())
RELEASES = ("v0.2.0", "v1.0.3")

DIRECTORIES = ("python", "system")

LISTS = ("device", "dns", "pnic", "host", "pf", "sriov_port_group")
"""Keys whose only value one of the two readings has without a list."""


def listed(cfg: dict[str, Any]) -> dict[str, Any]:
    return {k: [v] if k in LISTS and isinstance(v, str) else v for k, v in cfg.items()}


def of_machine(item: VhpcItem) -> dict[str, Any]:
    """Return a machine in the form of the toolkit."""
    read = {key: given.value for key, given in item.given.items()}
    for key in ("script", "sequence", "barrier"):
        read.pop(key, None)
    for step, scripts in item.scripts.items():
        read[f"script{step}"] = [path for path, _ in scripts]
    return {"vm": item.name, **read}


def of_switch(item: VhpcItem, op: str) -> dict[str, Any]:
    read = {key: given.value for key, given in item.given.items()}
    return {**read, "op": op, "name": item.name, "host": item.hosts}


def parsed(text: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Sections]:
    sections = read_sections(text, "c.conf")
    vms = [of_machine(item) for item in machines(sections)]
    made = [of_switch(item, "svs") for item in switches(sections, "_SVS_")]
    made += [of_switch(item, "dvs") for item in switches(sections, "_DVS_")]
    return vms, made, sections


def test_every_file_has_a_reading_of_every_release() -> None:
    for release in RELEASES:
        assert set(READINGS[release]) == set(FILES)
    readable = {r: {f for f, v in READINGS[r].items() if v != "refused"} for r in RELEASES}
    assert readable["v0.2.0"] | readable["v1.0.3"] == set(FILES) - {"no-step.conf"}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_as_the_toolkit_reads_it(name: str, release: str) -> None:
    fact = READINGS[release][name]
    if fact == "refused":
        return
    vms, made, sections = parsed(FILES[name].read_text())
    assert not sections.problems
    if release == "v0.2.0":  # it made lower case of all names
        vms = [{**vm, "vm": vm["vm"].lower()} for vm in vms]
    assert [listed(switch) for switch in made] == [listed(s) for s in fact.get("switches", [])]
    common = listed(fact["common"])
    own = [{k: v for k, v in listed(vm).items() if k not in common} for vm in vms]
    assert all({k: v for k, v in listed(vm).items() if k in common} == common for vm in vms)
    if "sha256" in fact:
        assert len(vms) == fact["count"] == 500
        bare = [{k: v[0] if k == "host" else v for k, v in one.items()} for one in own]
        assert (bare[0], bare[-1]) == (fact["first"], fact["last"])
        digest = hashlib.sha256(json.dumps(bare, sort_keys=True).encode()).hexdigest()
        assert digest == fact["sha256"]
    else:
        assert own == [listed(machine) for machine in fact["machines"]]


BASE = "[B]\ntemplate: t\n[_VMS_]\n"

DIFFERENT = [
    # What; the text; what release 1.0.3 reads; our machines, or the words of the refusal.
    (
        "a list over two lines",
        "[B]\ntemplate: t\ndns: ['10.0.0.1',\n  '10.0.0.2']\n[_VMS_]\nv: B\n",
        "one text with a line break",
        [{"vm": "v", "dns": ["10.0.0.1", "10.0.0.2"]}],
    ),
    (
        "a range twice in a name",
        f"{BASE}v{{1:2}}-{{1:2}}: B\n",
        "an error",
        [{"vm": "v1-1"}, {"vm": "v2-2"}],
    ),
    (
        "a range at the beginning of a name",
        f"{BASE}{{1:2}}v: B\n",
        "one machine {1:2}v",
        [{"vm": "1v"}, {"vm": "2v"}],
    ),
    (
        "a step before any script",
        f"{BASE}v: B sequence:0\n",
        "an exception",
        [{"vm": "v", "template": "t"}],
    ),
    (
        "a step that occurs twice",
        f"{BASE}v: B script:a sequence:1 script:b sequence:1\n",
        "only the second script",
        [{"vm": "v", "template": "t", "script1": ["a", "b"]}],
    ),
    (
        "a percent sign",
        "[B]\ntemplate: t\ndomain: a%b\n[_VMS_]\nv: B\n",
        "an exception",
        [{"vm": "v", "domain": "a%b"}],
    ),
    ("a key in capitals", f"{BASE}v: B CPU:4\n", "an error", [{"vm": "v", "cpu": 4}]),
    (
        "a range for one machine",
        f"{BASE}v: B host: e{{1:2}}\n",
        "the host e{1:2}",
        "c.conf:4:1: host: e{1:2} of v: is a range, and v is one machine",
    ),
    (
        "blocks that do not divide",
        f"{BASE}v{{1:3}}: B host: e{{{{1:2}}}}\n",
        "an exception",
        "has 2 values for 3 machines, and each value needs the same number of machines",
    ),
    ("a range that goes down", f"{BASE}v{{4:1}}: B\n", "no machine", "goes down from 4 to 1"),
    (
        "two ranges in a value",
        f"{BASE}v{{1:2}}: B ip: 10.0.{{1:2}}.{{3:4}}\n",
        "the address 10.0.1.{3:4}",
        "has two ranges; a value has one",
    ),
    (
        "keys of all machines",
        f"[DEFAULT]\ncpu: 1\n{BASE}v: B\n",
        "an error",
        "its keys would be in every section",
    ),
]


@pytest.mark.parametrize(
    ("text", "theirs", "ours"), [row[1:] for row in DIFFERENT], ids=[row[0] for row in DIFFERENT]
)
def test_a_difference_to_the_toolkit_is_intended(text: str, theirs: str, ours: Any) -> None:
    assert theirs
    vms, _, sections = parsed(text)
    if isinstance(ours, str):
        assert any(ours in str(problem) for problem in sections.problems), sections.problems
        return
    assert not sections.problems
    assert [{k: v for k, v in vm.items() if k in ours[0]} for vm in vms] == ours


ALIKE = [
    (
        "leading zeros",
        f"{BASE}v{{08:10}}: B host: e0{{08:10}}\n",
        [("v8", "e08"), ("v9", "e09"), ("v10", "e010")],
    ),
    ("digits of another script", f"{BASE}v{{\u0661:\u0662}}: B\n", [("v1", None), ("v2", None)]),
    ("names that differ in case", f"{BASE}v: B\nV: B\n", [("v", None), ("V", None)]),
    ("a comment after a heading", "[B] # x\ntemplate: t\n[_VMS_]\nv: B\n", [("v", None)]),
]


@pytest.mark.parametrize(
    ("text", "read"), [row[1:] for row in ALIKE], ids=[row[0] for row in ALIKE]
)
def test_odd_texts_are_read_as_release_1_0_3_reads_them(text: str, read: Any) -> None:
    vms, _, sections = parsed(text)
    assert not sections.problems
    assert [(vm["vm"], vm.get("host")) for vm in vms] == read


def test_values_with_two_percent_signs_have_one() -> None:
    ((vm,), _, _) = parsed("[B]\ntemplate: t\ndomain: a%%b\n[_VMS_]\nv: B\n")
    assert vm["domain"] == "a%b"


@pytest.mark.parametrize(
    "lines",
    [
        "v{1:2}: B host: e{1:3}",
        "v: B colour:red",
        "v: B memory:many",
        "v: B\nv: B",
        "v: B\n[_SVS_]\ns: host: e{{1:2}}",
        "v: B\n[B]",
    ],
)
def test_what_the_toolkit_refuses_is_refused(lines: str) -> None:
    _, _, sections = parsed(f"{BASE}{lines}\n")
    assert sections.problems


COMMANDS = {
    *("view", "cluster", "clone", "destroy", "power", "secure_boot", "migrate_vm", "cpumem"),
    *("latency", "vm_sched_affinity", "numa_affinity", "network", "network_cfg", "passthru"),
    *("passthru_host", "sriov", "sriov_host", "pvrdma", "vgpu", "post", "get_vm_config"),
    *("power_policy", "svs", "dvs"),
}
"""The commands of release 1.0.3."""


def test_the_manual_has_every_command_with_the_tests_of_its_counterpart() -> None:
    root = Path(__file__).parents[2]
    page = (root / "nearmetal/share/man/nearmetal-import.md").read_text()
    table = page.partition("### Commands of vhpc-toolkit")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) == len(COMMANDS) == 24
    assert {row[0].strip("`") for row in rows} == COMMANDS
    for _, ours, *rest in rows:
        known = len(rest) == 2
        assert known != ours.startswith("no counterpart")
        names = re.findall(r"test_\w+", rest[1]) if known else []
        assert bool(names) == known
        for name in names:
            assert any((root / "tests" / where / f"{name}.py").exists() for where in DIRECTORIES)


def test_the_manual_has_every_key() -> None:
    page = Path(__file__).parents[2] / "nearmetal/share/man/nearmetal-import.md"
    table = page.read_text().partition("| key | becomes |")[2].partition("\n\n")[0]
    first = " ".join(line.split(" | ")[0] for line in table.splitlines())
    assert set(re.findall(r"`(\w+)`", first)) == {*MACHINE_KEYS, *SWITCH_KEYS}
