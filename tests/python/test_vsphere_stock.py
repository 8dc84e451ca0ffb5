# SPDX-License-Identifier: Apache-2.0
"""What is missing for a plan on vSphere, by facts of hosts, templates, datastores and networks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nearmetal.cluster.backends.vsphere.settings import DEFAULTS, MachineSettings, VmAdapter, merged
from nearmetal.cluster.backends.vsphere.stock import (
    DatastoreStock,
    Device,
    HostStock,
    Need,
    OtherMachine,
    SourceStock,
    Stock,
    TemplateStock,
    listed,
    shortages,
)

GIB = 1 << 30

GPU = Device("10de:20b0", "A100", passed=True)
HOST = HostStock(
    threads=8,
    core_mhz=2000,
    mhz=8000,
    memory=64 * GIB,
    devices={
        "0000:3b:00.0": Device("15b3:1017", "ConnectX-5", vfs=8),
        "0000:5e:00.0": GPU,
        "0000:5e:00.1": Device("10de:20b0", "A100"),
    },
    profiles=frozenset({"grid_a100-4q"}),
    others=(
        OtherMachine("db", ("0000:3b:00.0",) * 3, (), 32 * GIB, 4000),
        OtherMachine("ml", (), ("0000:5e:00.0",)),
    ),
)
STOCK = Stock(
    {"esx1": HOST, "esx2": HostStock(closed="is in maintenance mode", memory=GIB)},
    {"gold": TemplateStock(9, has_snapshot=False, size=20 * GIB, datastore="slow", vcpus=2)},
    {
        "slow": DatastoreStock(50 * GIB, frozenset({"esx1"})),
        "fast": DatastoreStock(900 * GIB, frozenset({"esx2"})),
        "old": DatastoreStock(0, frozenset({"esx1"}), "is not accessible"),
    },
    {("lan", ""): frozenset({"esx1"}), ("far", ""): frozenset({"esx2"})},
)


def need(node: str = "n1", esxi: str = "esx1", *, touched: bool = True, **keys: Any) -> Need:
    given = MachineSettings.model_validate({"template": "gold", "hardware": 19} | keys)
    return Need(node, esxi, merged(DEFAULTS, given), cloned=touched, touched=touched)


def said(*needs: Need, stock: Stock = STOCK) -> list[str]:
    return [finding.sentence for finding in shortages(needs, stock)]


def adapter(**keys: object) -> list[VmAdapter]:
    return [VmAdapter.model_validate(keys)]


def test_a_machine_that_finds_everything_misses_nothing() -> None:
    functions = adapter(kind="sriov", port_group="lan", pf="0000:3b:00.0")
    nodes = [
        need(f"n{i}", adapters=functions, memory="4 GiB", memory_reservation="full")
        for i in range(5)
    ]
    assert said(*nodes[:2]) == []
    # The five are all that is left of eight functions; their disks are one too many.
    assert [text.partition(": it has")[0] for text in said(*nodes)] == [
        "nodes n0, n1, n2 and 2 more: 100 GiB on datastore slow"
    ]


ONE: dict[str, tuple[dict[str, Any], str]] = {
    "linked": (
        {"clone": "linked"},
        (
            "node n1: template gold has no snapshot: a linked clone needs one; take a snapshot of it, "
            "or write clone: full"
        ),
    ),
    "efi": (
        {"secure_boot": True},
        (
            "node n1: template gold boots by BIOS: secure boot needs EFI; use a template with EFI, or "
            "leave secure_boot out"
        ),
    ),
    "mmio": (
        {"mmio": "64 GiB"},
        (
            "node n1: template gold boots by BIOS, and mmio is set: a guest reaches 64-bit MMIO only "
            "if it boots by EFI; use a template with EFI, or leave mmio out for a device with small "
            "regions"
        ),
    ),
    "hardware": (
        {"hardware": None, "adapters": adapter(kind="pvrdma", port_group="lan")},
        "node n1: template gold has virtual hardware 9: an adapter needs 13; write hardware: 13",
    ),
    "datastore": (
        {"datastore": "fast"},
        "node n1: host esx1 does not reach datastore fast; its datastores: old, slow",
    ),
    "files": (
        {"datastore": "old", "clone": "full"},
        "node n1: datastore old is not accessible: it takes no files; use another",
    ),
    "network": (
        {"adapters": adapter(kind="vmxnet3", port_group="far")},
        "node n1: host esx1 does not have port group far; its port groups: lan",
    ),
    "taken": (
        {"adapters": adapter(kind="passthrough", device="0000:5e:00.0")},
        (
            "node n1: 0000:5e:00.0 of host esx1: ml has it; devices that are passed through there: "
            "0000:5e:00.0 (A100)"
        ),
    ),
    "inactive": (
        {"adapters": adapter(kind="passthrough", device="0000:5e:00.1")},
        (
            "node n1: 0000:5e:00.1 of host esx1 (A100): passthrough is not active for it: enable it, "
            "and reboot the host; devices that are passed through there: 0000:5e:00.0 (A100)"
        ),
    ),
    "absent": (
        {"adapters": adapter(kind="passthrough", device="0000:5e:00.7")},
        (
            "node n1: host esx1 has no device 0000:5e:00.7: it has other addresses; devices that are "
            "passed through there: 0000:5e:00.0 (A100)"
        ),
    ),
    "dynamic": (
        {"adapters": adapter(kind="dynamic", models=["15b3:1017"])},
        (
            "node n1: 1 devices of model 15b3:1017 on host esx1: there are 0; models that are passed "
            "through: 10de:20b0"
        ),
    ),
    "vgpu": (
        {"adapters": adapter(kind="vgpu", profile="grid_v100-8q")},
        (
            "node n1: vGPU profile grid_v100-8q on host esx1: it is not there; profiles there: "
            "grid_a100-4q"
        ),
    ),
    "memory": (
        {"memory": "40 GiB", "memory_reservation": "full"},
        (
            "node n1: 40 GiB of reserved memory on host esx1: there are 64 GiB, of which others reserve "
            "32 GiB; reserve less, or use another host"
        ),
    ),
    "processors": (
        {"vcpus": 4, "cpu_reservation": "full"},
        (
            "node n1: 8000 MHz of reserved processors on host esx1: there are 8000, of which others "
            "reserve 4000; reserve less, or use another host"
        ),
    ),
}


@pytest.mark.parametrize("case", ONE)
def test_each_thing_that_is_missing_is_said_with_what_there_is(case: str) -> None:
    keys, text = ONE[case]
    assert text in said(need(**keys))
    # Nothing is missing for a machine that stays as it is.
    assert said(need(touched=False, **keys)) == []


def test_a_machine_that_is_off_holds_nothing() -> None:
    gpu = adapter(kind="passthrough", device="0000:5e:00.0")
    assert said(need(adapters=gpu, power="off", memory="99 GiB", memory_reservation="full")) == []
    assert said(need(esxi="esx2", datastore="fast", power="off")) == []
    closed = said(need(esxi="esx2", datastore="fast"))
    assert closed == [
        "node n1: host esx2 is in maintenance mode: no machine starts there; use another: esx1"
    ]


def test_devices_of_any_host_are_counted_over_all() -> None:
    gpus = adapter(kind="dynamic", models=["10de:20b0"])
    first, second = need("n1", "auto", adapters=gpus), need("n2", "auto", adapters=gpus)
    assert said(first) == []
    (text,) = said(first, second)
    assert text.startswith("nodes n1, n2: 2 devices of model 10de:20b0 on host esx1, esx2: there")


def test_nodes_of_any_host_share_what_all_hosts_have() -> None:
    nodes = [
        need(
            f"n{i}",
            esxi,
            memory="20 GiB",
            memory_reservation="full",
            datastore="fast",
            clone="linked",
        )
        for i, esxi in enumerate(("auto", "auto"))
    ]
    assert "nodes n0, n1: 40 GiB of reserved memory on all hosts: there are" in said(*nodes)[-1]
    assert not any("reserved memory" in text for text in said(nodes[0]))


def test_names_of_an_error_are_few() -> None:
    assert listed(f"n{i}" for i in range(10)) == "n0, n1, n2, n3, n4, n5, n6, n7 and 2 more"
    assert listed(()) == "nothing"


@pytest.mark.parametrize(
    ("source", "keys", "reasons"),
    [
        (SourceStock("esx1", "is not on"), {}, ["machine gold is not on"]),
        (SourceStock("esx2"), {}, ["machine gold runs on esx2, not on esx1"]),
        (SourceStock("esx1", values={"p2p": False, "affinity": (), "latency": "normal"}), {}, []),
        (
            SourceStock("esx1", values={"p2p": True, "affinity": (0, 2), "latency": "high"}),
            {"affinity": [0, 2]},
            [
                "machine gold has p2p true, not false",
                "machine gold has latency high, not normal",
            ],
        ),
    ],
)
def test_an_instant_clone_has_what_its_source_has(
    source: SourceStock, keys: dict[str, Any], reasons: list[str]
) -> None:
    stock = replace(STOCK, templates={"gold": TemplateStock(19, source=source)})
    found = said(need(clone="instant", **keys), stock=stock)
    assert [sentence.partition(": ")[2].partition(":")[0] for sentence in found] == reasons
