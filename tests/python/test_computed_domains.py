# SPDX-License-Identifier: Apache-2.0
"""What nearmetal-computed believes of a domain, of QEMU and of Nova: hostile text changes nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import pytest

from nearmetal.cluster.backends.openstack.shared import EXTRA_SPEC
from nearmetal.computed.domains import MAX_DOCUMENT, NOVA, empty_ports, read_server, sized
from nearmetal.computed.settings import check_credentials, read_settings
from nearmetal.core.deadline import Deadline
from nearmetal.core.errors import BackendError, NearmetalError, PasswordError

SERVER = "8f0e6a2c-8d1b-4b6c-9f5c-0a4f1f4d2c11"
PROJECT = "0123456789abcdef0123456789abcdef"
SPEC = f'<nova:extraSpec name="{EXTRA_SPEC}">64 MiB</nova:extraSpec>'


def port(index: int, more: str = "") -> str:
    return (
        f"<controller type='pci' index='{index}' model='pcie-root-port'>{more}"
        f"<alias name='pci.{index}'/><address type='pci' bus='0x00' slot='0x02'/></controller>"
    )


def document(
    *,
    name: str = "web",
    specs: str = SPEC,
    project: str = PROJECT,
    server: str = SERVER,
    image: str = "",
    more: str = "",
    devices: str = "",
    memory: str = "",
) -> str:
    """Return a domain as Nova and libvirt write it; texts of users are escaped, as they do it."""
    return f"""<domain type='qemu' id='3'><name>instance-00000001</name><uuid>{server}</uuid>
<metadata><nova:instance xmlns:nova="{NOVA}"><nova:name>{escape(name)}</nova:name>
<nova:flavor name="f" id="1"><nova:extraSpecs>{specs}</nova:extraSpecs></nova:flavor>
<nova:image uuid=""><nova:properties>{image}</nova:properties></nova:image>
<nova:owner><nova:user uuid="u">{escape(name)}</nova:user>
<nova:project uuid={quoteattr(project)}>{escape(name)}</nova:project></nova:owner>
</nova:instance>{more}</metadata>{memory}<devices>{devices}</devices></domain>"""


def test_nova_and_the_flavor_are_read() -> None:
    found = read_server(document(devices=port(1) + port(2) + port(10)))
    assert found is not None
    assert (found.server, found.project, found.part_size) == (SERVER, PROJECT, 64 << 20)
    assert found.ports == ("pci.10", "pci.2", "pci.1")


def test_a_nova_before_2025_2_does_not_say_what_a_flavor_gives() -> None:
    old = document(devices=port(1)).replace(f"<nova:extraSpecs>{SPEC}</nova:extraSpecs>", "")
    found = read_server(old)
    assert found is not None
    assert (found.without_specs, found.part_size, found.ports) == (True, 0, ("pci.1",))
    assert sized(found, "64 MiB") == read_server(document(devices=port(1)))
    assert "'3 MiB' is not a power of two" in sized(found, "3 MiB").fault
    # What the domain itself lacks stays its fault.
    found = read_server(old.replace("<devices>", "<devices><hostdev/>"))
    assert found is not None
    assert "hw:locked_memory=true" in sized(found, "64 MiB").fault


def test_domains_of_others_and_flavors_without_the_extra_spec_are_left_out() -> None:
    assert read_server("<domain><name>x</name><uuid>1</uuid></domain>") is None
    assert read_server(document(specs="")) is None
    assert read_server(document(specs='<nova:extraSpec name="x">64 MiB</nova:extraSpec>')) is None


@pytest.mark.parametrize(
    "name",
    [
        f'</nova:name><nova:owner><nova:project uuid="{"f" * 32}"/></nova:owner><nova:name>',
        f"]]></nova:name>{SPEC}<!--",
        "\u202e\u2028" + "x" * 255,
        "&lt;nova:flavor&gt;",
    ],
)
def test_a_name_that_a_user_chose_decides_nothing(name: str) -> None:
    plain = read_server(document())
    assert read_server(document(name=name)) == plain
    assert read_server(document(name=name, specs="")) is None


@pytest.mark.parametrize(
    "where",
    [
        {"image": SPEC.replace("extraSpec", "property")},
        {"image": f"<nova:extraSpecs>{SPEC}</nova:extraSpecs>"},
        {"more": f'<user:flavor xmlns:user="urn:user" xmlns:nova="{NOVA}">{SPEC}</user:flavor>'},
        {"devices": f'<hostdev xmlns:nova="{NOVA}">{SPEC}</hostdev>'},
    ],
)
def test_an_extra_spec_in_any_other_place_counts_for_nothing(where: dict[str, str]) -> None:
    assert read_server(document(specs="", **where)) is None


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (document(specs=SPEC + SPEC), "no single owner or flavor"),
        (document(more=f'<nova:instance xmlns:nova="{NOVA}"/>'), "no single owner or flavor"),
        (document(server="../../etc"), "ID of its server or project is not valid"),
        (document(server=SERVER.upper()), "ID of its server or project is not valid"),
        (document(project=""), "ID of its server or project is not valid"),
        (document(project="../x"), "ID of its server or project is not valid"),
        (document(project="x" * 65), "ID of its server or project is not valid"),
        (document()[:-4], "is damaged"),
        (" " * MAX_DOCUMENT + document(), "more than 4 MiB"),
    ],
)
def test_a_domain_of_another_form_is_refused(bad: str, why: str) -> None:
    with pytest.raises(BackendError, match=why):
        read_server(bad)


@pytest.mark.parametrize(
    "size",
    ["64", "63 MiB", "1 MiB", "128 GiB", "-64 MiB", "9" * 5000, "64 M\u202eiB", "", "nan MiB"],
)
def test_a_size_that_is_not_valid_is_a_fault_in_words(size: str) -> None:
    spec = f'<nova:extraSpec name="{EXTRA_SPEC}">{size}</nova:extraSpec>'
    found = read_server(document(specs=spec))
    assert found is not None
    assert found.part_size == 0
    assert found.fault.startswith(f"extra spec {EXTRA_SPEC} of its flavor: ")
    assert found.fault.isprintable()
    assert len(found.fault) < 250


HOSTDEVS = (
    "<hostdev mode='subsystem' type='pci'/>",
    "<interface type='hostdev'/>",
    "<interface type='vdpa'><source dev='/dev/vhost-vdpa-0'/></interface>",
)
LOCKED = "<memoryBacking><locked/></memoryBacking>"


@pytest.mark.parametrize("device", HOSTDEVS)
@pytest.mark.parametrize(
    "memory",
    [
        "",
        "<memoryBacking><hugepages/></memoryBacking>",
        "<locked/>",
        f"{LOCKED}<memtune><hard_limit unit='KiB'>1048576</hard_limit></memtune>",
    ],
)
def test_a_server_with_devices_of_the_host_and_limited_memory_is_refused_in_words(
    device: str, memory: str
) -> None:
    found = read_server(document(devices=port(1) + device, memory=memory))
    assert found is not None
    assert "devices of the host (VFIO or vDPA)" in found.fault
    assert "hw:locked_memory=true" in found.fault


@pytest.mark.parametrize("device", HOSTDEVS)
def test_a_server_with_devices_of_the_host_and_locked_memory_gets_a_segment(device: str) -> None:
    found = read_server(document(devices=port(1) + device, memory=LOCKED))
    assert found is not None
    assert (found.fault, found.part_size) == ("", 64 << 20)


def test_only_ports_that_take_a_device_now_count() -> None:
    bridge = (
        "<controller type='pci' index='5' model='pcie-to-pci-bridge'><alias name='pci.5'/>"
        "<address type='pci' bus='0x04' slot='0x00'/></controller>"
    )
    disk = "<disk><address type='pci' bus='0x01' slot='0x00'/></disk>"
    fixed = port(2, "<target chassis='2' port='0x1' hotplug='off'/>")
    devices = port(1) + fixed + port(3) + port(4) + bridge + disk
    found = read_server(document(devices=devices))
    assert found is not None
    assert found.ports == ("pci.3",)


def test_qemu_says_which_ports_are_empty() -> None:
    answer = [
        {
            "bus": 0,
            "devices": [
                {"qdev_id": "pci.1", "pci_bridge": {"bus": {}, "devices": []}},
                {"qdev_id": "pci.2", "pci_bridge": {"devices": [{"qdev_id": "net0"}]}},
                {"qdev_id": "pci.3", "pci_bridge": {"bus": {}}},
                {"qdev_id": "net1"},
            ],
        }
    ]
    assert empty_ports(answer, ("pci.3", "pci.2", "pci.1")) == ("pci.3", "pci.1")
    assert empty_ports(None, ("pci.3",)) == ()


def test_a_question_that_hangs_delays_no_other() -> None:
    release, deadline = threading.Event(), Deadline(0.2)
    with pytest.raises(BackendError, match=r"its QEMU does not answer within 0\.2 s"):
        deadline.call("a", "its QEMU", release.wait)
    with pytest.raises(BackendError, match="its QEMU has not answered yet"):
        deadline.call("a", "its QEMU", lambda: 1)
    # A busy machine may need longer than that to start a thread.
    deadline._limit_s = 60.0
    assert deadline.call("b", "its QEMU", lambda: 1) == 1
    release.set()
    late = deadline._busy["a"]
    late.join(10)
    assert deadline.call("b", "its QEMU", lambda: 2) == 2
    # Nothing is left of a server that hung and has gone.
    assert deadline._busy == {}
    assert deadline.call("a", "its QEMU", lambda: 2) == 2
    with pytest.raises(ZeroDivisionError):
        deadline.call("a", "its QEMU", lambda: 1 // 0)


def test_credentials_are_for_root_alone(tmp_path: Path) -> None:
    path = tmp_path / "clouds.yaml"
    with pytest.raises(PasswordError, match="cannot read"):
        check_credentials(path)
    path.write_text("clouds: {}")
    path.chmod(0o640)
    with pytest.raises(PasswordError, match="other users may read or write"):
        check_credentials(path)
    path.chmod(0o600)
    check_credentials(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(PasswordError, match="is not a regular file"):
        check_credentials(link)


def test_settings_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "computed.yaml"
    path.write_text("version: 1\ncloud: c\n")
    found = read_settings(path)
    assert (found.parts, found.memory, found.libvirt) == (8, 4 << 30, "qemu:///system")
    path.write_text("version: 1\ncloud: c\nparts: 1000\npassword: x\n")
    with pytest.raises(NearmetalError) as error:
        read_settings(path)
    assert "computed.yaml:3:8: parts" in error.value.message
    assert "password" in error.value.message
