# SPDX-License-Identifier: Apache-2.0
"""A small model of a kernel with SR-IOV adapters: a tree of files that reacts to writes.

It answers as Linux 6.12 does for igb and mlx4; everything it knows lies below its root, so that
several processes may share one.
"""

import json
import shutil
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nearmetal.core.errors import HostError
from nearmetal.host.vf.facts import Sysfs
from nearmetal.host.vf.kernel import Kernel
from nearmetal.host.vf.model import ETHERNET, INFINIBAND, Link, VfSettings

BOOT = "11111111-2222-3333-4444-555555555555"
ROOT_PORT = "0000:00:03.0"


class Killed(BaseException):
    """Stands for the death of the process between two steps."""


def bridge_config(*, acs: bool | None, express_type: int = 4, size: int = 4096) -> bytes:
    """Configuration space of a port: PCI Express capability at 0x40, ACS at 0x140."""
    config = bytearray(4096)
    config[0x34] = 0x40
    config[0x40:0x43] = bytes([0x10, 0, express_type << 4])
    struct.pack_into("<I", config, 0x100, 0x0001 | 1 << 16 | 0x140 << 20)
    if acs is not None:
        struct.pack_into("<IHH", config, 0x140, 0x000D | 1 << 16, 0x1D, 0x1D if acs else 0)
    return bytes(config[:size])


def fresh(kind: str) -> dict[str, Any]:
    """What a driver sets for a VF that was just created."""
    if kind == INFINIBAND:
        zero = "00:00:00:00:00:00:00:00"
        return asdict(VfSettings(link_state=2, node_guid=zero, port_guid=zero))
    return asdict(
        VfSettings(
            "00:00:00:00:00:00",
            0,
            0,
            trust=False,
            spoof_check=True,
            rate=0,
            min_rate=0,
            link_state=0,
        )
    )


class Tree:
    """The files; `Tree(root)` continues one that exists."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "netlink.json"

    def make(self, *, iommu: bool = True, cmdline: str = "quiet intel_iommu=on") -> "Tree":
        self.put("proc/sys/kernel/random/boot_id", BOOT)
        self.put("proc/cmdline", cmdline)
        self.put("proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\n")
        for directory in (
            "sys/bus/pci/devices",
            "sys/bus/pci/drivers",
            "sys/class/net",
            "sys/class/infiniband",
            "sys/firmware/acpi/tables",
        ):
            (self.root / directory).mkdir(parents=True)
        if iommu:
            self.put("sys/firmware/acpi/tables/DMAR", "DMAR")
            (self.root / "sys/kernel/iommu_groups").mkdir(parents=True)
        self.save({"links": {}, "iommu": iommu, "vf_driver": {}})
        return self

    def put(self, name: str, text: str | bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode() + b"\n")

    def load(self) -> dict[str, Any]:
        return json.loads(self.state.read_text())  # type: ignore[no-any-return]

    def save(self, state: dict[str, Any]) -> None:
        self.state.write_text(json.dumps(state))

    def device(self, address: str, above: str = ROOT_PORT) -> Path:
        real = self.root / "sys/devices/pci0000:00" / above / address
        real.mkdir(parents=True)
        (self.root / "sys/bus/pci/devices" / address).symlink_to(real)
        if self.load()["iommu"]:
            groups = self.root / "sys/kernel/iommu_groups"
            group = groups / str(next(n for n in range(999) if not (groups / str(n)).exists()))
            (group / "devices").mkdir(parents=True)
            (group / "devices" / real.name).symlink_to(real)
            (real / "iommu_group").symlink_to(group)
        return real

    def bridge(self, address: str = ROOT_PORT, *, acs: bool | None = True) -> None:
        real = self.root / "sys/devices/pci0000:00" / address
        real.mkdir(parents=True)
        (self.root / "sys/bus/pci/devices" / address).symlink_to(real)
        (real / "config").write_bytes(bridge_config(acs=acs))

    def pf(
        self,
        address: str = "0000:01:00.0",
        name: str = "ens1",
        *,
        total: int = 7,
        numa: int = 0,
        kind: str = ETHERNET,
        driver: str = "igb",
        up: bool = False,
        cable: bool = True,
        above: str = ROOT_PORT,
        rdma: str = "",
    ) -> None:
        if not (self.root / "sys/bus/pci/devices" / above).exists():
            self.bridge(above)
        real = self.device(address, above)
        for file, text in (
            ("sriov_totalvfs", str(total)),
            ("sriov_numvfs", "0"),
            ("sriov_drivers_autoprobe", "1"),
            ("numa_node", str(numa)),
            ("vendor", "0x8086"),
            ("device", "0x10c9"),
        ):
            if total or not file.startswith("sriov"):
                (real / file).write_text(text + "\n")
        self.bind(real, driver)
        if rdma:
            self.rdma(real, rdma)
        state = self.load()
        self.net(state, real, name, kind, up=up)
        state["links"][name] |= {"pf": address, "cable": cable}
        self.save(state)

    def rdma(self, real: Path, name: str) -> None:
        (real / "infiniband" / name).mkdir(parents=True)
        target = self.root / "sys/class/infiniband" / name
        (target / "ports/1/pkeys").mkdir(parents=True)
        (target / "device").symlink_to(real)
        for index, key in enumerate(("0xffff", "0x8012", "0x0000")):
            (target / f"ports/1/pkeys/{index}").write_text(key + "\n")

    def net(self, state: dict[str, Any], real: Path, name: str, kind: str, *, up: bool) -> None:
        (real / "net" / name).mkdir(parents=True)
        (self.root / "sys/class/net" / name).mkdir()
        (self.root / "sys/class/net" / name / "device").symlink_to(real)
        index = max([1, *(link["index"] for link in state["links"].values())]) + 1
        state["links"][name] = {
            "index": index,
            "kind": kind,
            "up": up,
            "enslaved": False,
            "cable": True,
            "vfs": {},
        }

    def bind(self, real: Path, driver: str) -> None:
        directory = self.root / "sys/bus/pci/drivers" / driver
        directory.mkdir(exist_ok=True)
        (real / "driver").symlink_to(directory)

    def vf_address(self, address: str, number: int) -> str:
        return f"{address[:7]}:{0x10 + number // 4:02x}.{number % 4 * 2}"

    def create(self, address: str, count: int) -> None:
        """What the kernel does when somebody else writes sriov_numvfs."""
        FakeKernel(self).write(f"sys/bus/pci/devices/{address}/sriov_numvfs", str(count))

    def dump(self) -> dict[str, Any]:
        """Everything that giving back must restore."""
        state = self.load()
        for link in state["links"].values():
            del link["index"]  # a driver that is bound again makes a new device
        found: dict[str, Any] = {"netlink": state}
        for path in sorted(self.root.rglob("*")):
            if path.is_symlink():
                found[str(path.relative_to(self.root))] = path.readlink().name
            elif path.is_file() and path != self.state:
                found[str(path.relative_to(self.root))] = path.read_bytes()
        return found


def tree_of_two_vfs(root: Path) -> Tree:
    """Return a tree with an adapter of two VFs, and the directory of a cluster `c`."""
    made = Tree(root).make()
    made.pf(total=2)
    (made.root / "state/c").mkdir(parents=True)
    return made


class FakeKernel(Kernel):
    """The kernel of a tree. Dies before change number `kill_at`."""

    def __init__(self, tree: Tree, kill_at: int = 0) -> None:
        super().__init__(Sysfs(tree.root), carrier_s=0.0)
        self.tree = tree
        self.kill_at = kill_at
        self.changes: list[str] = []

    def links(self) -> list[Link]:
        state = self.tree.load()["links"]
        return [
            Link(
                entry["index"],
                name,
                entry["kind"],
                entry["up"],
                entry["up"] and entry["cable"],
                entry["enslaved"],
                tuple((int(n), VfSettings(**vf)) for n, vf in entry["vfs"].items()),
            )
            for name, entry in state.items()
        ]

    def write(self, path: str, value: str) -> None:
        self._change(f"{path} = {value.strip()}")
        full = self.tree.root / path
        match full.name:
            case "sriov_numvfs":
                self._numvfs(full.parent.resolve(), int(value))
            case "unbind":
                self._unbind(full.parent.parent.resolve())
            case "drivers_probe":
                self._probe(self._device(value))
            case "bind":
                self._bind(self._device(value), full.parent.name)
            case _:
                if not full.is_file():
                    raise HostError(f"no file {path}")
                empty = "(null)" if full.name == "driver_override" else ""
                full.write_text((value.strip() or empty) + "\n")

    def set_up(self, index: int, *, up: bool) -> None:
        self._change(f"link {index} up {up}")
        state = self.tree.load()
        self._by_index(state, index)["up"] = up
        self.tree.save(state)

    def set_vf(self, index: int, number: int, setting: str, value: Any) -> None:
        self._change(f"link {index} vf {number} {setting} = {value}")
        state = self.tree.load()
        link = self._by_index(state, index)
        vf = link["vfs"][str(number)]
        address = self.tree.vf_address(link["pf"], number)
        if setting == "rate" and not (link["up"] and link["cable"]):
            raise HostError("the kernel refuses: Invalid argument")
        if setting == "mac" and (self._device(address) / "net").is_dir():
            raise HostError("the VF driver would not see this address")  # igbvf
        pairs = {"vlan": ("vlan", "qos"), "rate": ("min_rate", "rate")}
        for key, one in zip(
            pairs.get(setting, (setting,)), value if setting in pairs else (value,), strict=True
        ):
            vf[key] = one
        self.tree.save(state)

    def load(self, module: str) -> None:
        self._change(f"modprobe {module}")
        name = "igbvf" if module.startswith("pci:v00008086d000010CA") else module
        (self.tree.root / "sys/bus/pci/drivers" / name).mkdir(exist_ok=True)

    def pause(self) -> None:
        """Time does not matter here."""

    def _change(self, what: str) -> None:
        if self.kill_at and len(self.changes) + 1 >= self.kill_at:
            raise Killed(what)
        self.changes.append(what)

    def _device(self, address: str) -> Path:
        return (self.tree.root / "sys/bus/pci/devices" / address).resolve()

    @staticmethod
    def _by_index(state: dict[str, Any], index: int) -> dict[str, Any]:
        return next(e for e in state["links"].values() if e["index"] == index)

    def _numvfs(self, pf: Path, count: int) -> None:
        old = int((pf / "sriov_numvfs").read_text())
        if old and count:
            raise HostError("cannot write: Device or resource busy")
        if count > int((pf / "sriov_totalvfs").read_text()):
            raise HostError("cannot write: Numerical result out of range")
        state = self.tree.load()
        link = next(e for e in state["links"].values() if e.get("pf") == pf.name)
        link["vfs"] = {str(n): fresh(link["kind"]) for n in range(count)}
        self.tree.save(state)
        for number in range(old):
            self._remove_vf(pf, number)
        for number in range(count):
            self._add_vf(pf, number)
        (pf / "sriov_numvfs").write_text(f"{count}\n")

    def _add_vf(self, pf: Path, number: int) -> None:
        real = self.tree.device(self.tree.vf_address(pf.name, number), pf.parent.name)
        (pf / f"virtfn{number}").symlink_to(real)
        (real / "physfn").symlink_to(pf)
        (real / "driver_override").write_text("(null)\n")
        (real / "modalias").write_text("pci:v00008086d000010CAsv00008086sd0000A03Cbc02sc00i00\n")
        for rdma in (pf / "infiniband").glob("*"):
            iov = self.tree.root / "sys/class/infiniband" / rdma.name / "iov"
            if iov.is_dir():
                (iov / real.name / "ports/1/pkey_idx").mkdir(parents=True)
                (iov / real.name / "ports/1/pkey_idx/0").write_text("0\n")
        if (pf / "sriov_drivers_autoprobe").read_text().strip() == "1":
            self._bind(real, f"{(pf / 'driver').readlink().name}vf")

    def _remove_vf(self, pf: Path, number: int) -> None:
        real = self._device(self.tree.vf_address(pf.name, number))
        self._unbind(real)
        if (real / "iommu_group").exists():
            shutil.rmtree((real / "iommu_group").resolve())
        for iov in self.tree.root.glob(f"sys/class/infiniband/*/iov/{real.name}"):
            shutil.rmtree(iov)
        (pf / f"virtfn{number}").unlink()
        (self.tree.root / "sys/bus/pci/devices" / real.name).unlink()
        shutil.rmtree(real)

    def _bind(self, real: Path, driver: str) -> None:
        override = (real / "driver_override").read_text().strip()
        if (real / "driver").exists() or override not in ("(null)", "", driver):
            raise HostError("cannot write: No such device")
        self.tree.bind(real, driver)
        if driver != "vfio-pci":
            state = self.tree.load()
            name = f"v{real.name[5:].replace(':', '').replace('.', 'f')}"
            self.tree.net(state, real, name, ETHERNET, up=False)
            self.tree.save(state)

    def _probe(self, real: Path) -> None:
        override = (real / "driver_override").read_text().strip()
        own = f"{(real / 'physfn/driver').readlink().name}vf"
        driver = own if override in ("(null)", "") else override
        loaded = (self.tree.root / "sys/bus/pci/drivers" / driver).is_dir()
        if loaded and not (real / "driver").exists():
            self._bind(real, driver)

    def _unbind(self, real: Path) -> None:
        (real / "driver").unlink(missing_ok=True)
        state = self.tree.load()
        for net in (real / "net").glob("*"):
            shutil.rmtree(self.tree.root / "sys/class/net" / net.name)
            state["links"].pop(net.name)
        self.tree.save(state)
        shutil.rmtree(real / "net", ignore_errors=True)
