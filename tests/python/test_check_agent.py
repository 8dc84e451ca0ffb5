# SPDX-License-Identifier: Apache-2.0
"""The agent: one file for old Pythons that reads within limits and changes nothing."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nearmetal.check.snapshot import MAX_BYTES, Snapshot, parse_snapshot
from nearmetal.cli import check
from tests.python.pci_tree import put

AGENT = Path(__file__).parents[2] / "nearmetal/share/check/agent.py"
OLD_MODULES = {"json", "os", "re", "resource", "select", "signal", "socket", "stat", "struct"}
OLD_MODULES |= {"contextlib", "sys", "time", "typing", "hashlib", "hmac", "statistics"}


def run_agent(*options: str, prefix: tuple[str, ...] = (), python: str = sys.executable) -> bytes:
    """Return the snapshot that the agent prints."""
    done = subprocess.run(
        [*prefix, python, "-I", "-S", "-B", "-", *options],
        input=AGENT.read_bytes(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == b""
    return done.stdout


def run(*options: str, prefix: tuple[str, ...] = (), python: str = sys.executable) -> Snapshot:
    return parse_snapshot(run_agent(*options, prefix=prefix, python=python), "here", "here")


def load_agent() -> ModuleType:
    """Return the agent as a module."""
    spec = importlib.util.spec_from_file_location("check_agent", AGENT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def agent(tmp_path: Path) -> ModuleType:
    """The agent as a module, on an empty root."""
    module = load_agent()
    module.ROOT = str(tmp_path)  # type: ignore[attr-defined]
    return module


def facts(agent: ModuleType, source: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for place, value in getattr(agent, source)():
        agent.put(found, place, value)
    return found


@pytest.mark.parametrize(
    "agent", [AGENT, AGENT.with_name("measure.py")], ids=lambda path: path.stem
)
def test_it_is_python_3_6_of_the_standard_library(agent: Path) -> None:
    tree = ast.parse(agent.read_text(), feature_version=(3, 6))
    imported = set()
    for each in ast.walk(tree):
        assert not isinstance(each, ast.NamedExpr | ast.Match)
        if isinstance(each, ast.Import):
            imported |= {alias.name for alias in each.names}
        elif isinstance(each, ast.ImportFrom):
            imported.add(str(each.module))
        elif isinstance(each, ast.FunctionDef):
            assert not each.args.posonlyargs
            for argument in each.args.args:
                assert "|" not in ast.unparse(argument.annotation or ast.Constant(None))
    assert imported <= OLD_MODULES


def test_it_runs_as_a_user_and_says_what_it_did_not_see() -> None:
    if os.geteuid() != 0:
        pytest.skip("the tests do not run as root")
    user = ("setpriv", "--reuid=64321", "--regid=64321", "--clear-groups")
    found = run(prefix=user, python="/usr/bin/python3")
    assert not found.root
    if Path("/sys/class/dmi/id/product_uuid").exists():
        assert found.unseen["uuid"] == "only root may read it"
    assert found.text("system", "kernel")


def test_a_snapshot_of_this_machine_is_within_the_limits() -> None:
    found = run()
    assert found.count("processor", "threads") == os.cpu_count()
    assert found.table("storage")
    assert found.seconds < 45
    assert abs(found.taken - time.time()) < 60
    quick = run("--quick")
    assert quick.quick
    assert not quick.table("software", "packages")


def hanging() -> Iterator[tuple[str, Any]]:
    yield "a.b", 1
    time.sleep(60)


def failing() -> Iterator[tuple[str, Any]]:
    yield "a.b", 1
    raise ValueError("a\x1b[31mb")


def endless() -> Iterator[tuple[str, Any]]:
    while True:
        yield "a.b", "x" * 1000


def dying() -> Iterator[tuple[str, Any]]:
    yield "a.b", 1
    os._exit(1)


@pytest.mark.parametrize(
    ("source", "limit_s", "why"),
    [
        (hanging, 3, "no answer in 3 s after a.b"),
        (failing, 30, "ValueError: a [31mb"),
        (dying, 30, "it ended early after a.b"),
    ],
)
def test_a_source_that_fails_keeps_its_first_facts(
    agent: ModuleType, source: Any, limit_s: int, why: str
) -> None:
    rows, reason = agent.read_source(source, limit_s)
    assert (rows, reason) == ([["a.b", 1]], why)


def test_daemons_are_seen_among_any_number_of_processes(agent: ModuleType, tmp_path: Path) -> None:
    agent.MOST_NAMES = 3  # type: ignore[attr-defined]
    put(tmp_path, {f"proc/{pid}/stat": f"{pid} (worker) S 1\n" for pid in range(1, 9)})
    put(tmp_path, {"proc/9/stat": "9 (slurmd) S 1\n", "proc/95/stat": "95 (chronyd) D 1\n"})
    found = facts(agent, "services")
    assert found["services"] == {"slurmd": "runs", "time": "chronyd"}
    assert found["system"]["processes"] == {"uninterruptible": 1, "zombies": 0}
    assert agent.read_source(agent.services, 5)[1] == ""


MOUNTS = """\
21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
22 21 8:1 /srv /home rw,relatime - ext4 /dev/sda1 rw
23 21 0:40 / /opt\\040x rw,noatime - nfs4 server:/opt ro,vers=4.2
24 21 0:41 / /data ro,nosuid - ext4 /dev/sdb rw
25 24 0:42 / /data rw - xfs /dev/sdc rw
"""


def test_each_mount_point_is_recorded_and_each_file_system_is_asked_once(
    agent: ModuleType, tmp_path: Path
) -> None:
    put(tmp_path, {"proc/self/mountinfo": MOUNTS})
    for name in ("home", "opt x", "data"):
        (tmp_path / name).mkdir()
    found = facts(agent, "mounts")["storage"]
    assert {point: (one["type"], one["options"]) for point, one in found.items()} == {
        "/": ("ext4", "relatime rw"),
        "/home": ("ext4", "relatime rw"),
        "/opt x": ("nfs4", "noatime ro"),
        "/data": ("xfs", "rw"),
    }
    assert [point for point, one in found.items() if "bytes" in one] == ["/", "/opt x", "/data"]
    agent.MOST_MOUNTS = 2  # type: ignore[attr-defined]
    rows, why = agent.read_source(agent.mounts, 5)
    assert {place.split(".")[1] for place, _ in rows} == {"/", "/home"}
    assert why == "cut: 2 of 4 mounts"


def test_mounts_that_another_one_covers_are_not_recorded(agent: ModuleType, tmp_path: Path) -> None:
    more = """\
26 21 0:43 / /mnt/a/b rw - xfs /dev/sdd rw
27 26 0:44 / /mnt/a/b/c rw - xfs /dev/sde rw
28 21 0:45 / /mnt rw - tmpfs none rw
29 28 0:46 / /mnt/a rw - tmpfs none rw
30 21 0:47 / /mnt2 rw - tmpfs none rw
"""
    put(tmp_path, {"proc/self/mountinfo": MOUNTS + more})
    for name in ("home", "opt x", "data", "mnt/a", "mnt2"):
        (tmp_path / name).mkdir(parents=True)
    found = facts(agent, "mounts")["storage"]
    assert set(found) == {"/", "/home", "/opt x", "/data", "/mnt", "/mnt/a", "/mnt2"}
    assert not any("error" in one for one in found.values())


def test_mounts_of_a_node_whose_root_is_its_initramfs_are_recorded(
    agent: ModuleType, tmp_path: Path
) -> None:
    """A node without a disk: the first mount of a kernel is its own parent."""
    rows = """\
1 1 0:2 / / rw - rootfs rootfs rw
20 1 0:50 / /home rw,relatime - nfs4 server:/home rw
21 1 0:42 / /tmp rw - tmpfs none rw
"""
    put(tmp_path, {"proc/self/mountinfo": rows})
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    assert set(facts(agent, "mounts")["storage"]) == {"/", "/home", "/tmp"}


def test_a_mount_that_hangs_hides_no_other(agent: ModuleType, tmp_path: Path) -> None:
    more = "26 21 0:50 / /z rw - nfs server:/z rw\n"
    put(tmp_path, {"proc/self/mountinfo": MOUNTS + more})
    stat = os.statvfs

    def hang(path: str) -> os.statvfs_result:
        if path.endswith("/opt x"):
            time.sleep(60)
        return stat(tmp_path)

    agent.os = SimpleNamespace(**{**vars(os), "statvfs": hang})  # type: ignore[attr-defined]
    rows, why = agent.read_source(agent.mounts, 3)
    assert ["storage./z.type", "nfs"] in rows
    assert why == "no answer in 3 s after storage./opt x.remote"


def test_a_folder_that_a_user_chose_and_that_hangs_hides_no_shared_memory(
    agent: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev/shm").mkdir(parents=True)
    ask = os.path.isfile

    def hang(path: str) -> bool:
        if "/z/" in str(path):
            time.sleep(60)
        return ask(path)

    monkeypatch.setenv("FI_PROVIDER_PATH", "/z/nearmetal")
    monkeypatch.setenv("NEARMETAL_RUNDIR", "/z/run")
    agent.os.path.isfile = hang
    try:
        rows, why = agent.read_source(agent.own, 1)
    finally:
        agent.os.path.isfile = ask
    assert why.startswith("no answer")
    places = [place for place, _ in rows]
    assert "nearmetal.folders./dev/shm.writable" in places
    assert "nearmetal.environment.NEARMETAL_RUNDIR" in places


def test_a_rundir_that_the_provider_can_make_is_usable(
    agent: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "made").mkdir(mode=0o700)
    found = {}
    for path in ("/place/run", "/none/run", "//made/"):
        monkeypatch.setenv("NEARMETAL_RUNDIR", path)
        found[path] = facts(agent, "own")["nearmetal"]["folders"]
    assert found["/place/run"] == {"/place/run": {"writable": True}}
    assert found["/none/run"] == {"/none/run": {"writable": False}}
    assert found["//made/"] == {"/made": {"mode": "700", "writable": True}}


def test_what_is_too_much_is_said(agent: ModuleType, tmp_path: Path) -> None:
    agent.MOST_NAMES = 3  # type: ignore[attr-defined]
    put(tmp_path, {f"sys/class/net/eth{i}/mtu": "1500\n" for i in range(5)})
    rows, why = agent.read_source(agent.interfaces, 5)
    assert len({place.split(".")[1] for place, _ in rows}) == 3
    assert why == "cut: 3 of 5 names of /sys/class/net"


def streams() -> Iterator[tuple[str, Any]]:
    yield "streams", [str(Path(f"/proc/self/fd/{stream}").readlink()) for stream in (0, 1, 2)]


def test_a_source_that_hangs_holds_no_stream_of_the_agent(agent: ModuleType) -> None:
    rows, _ = agent.read_source(streams, 5)
    assert rows == [["streams", ["/dev/null"] * 3]]


def test_a_quick_agent_ends_before_its_caller_stops_waiting(
    agent: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert agent.QUICK_TOTAL_S + 5 < check._QUICK_S
    agent.QUICK_TOTAL_S = 0.6  # type: ignore[attr-defined]
    agent.SOURCES = [("a", hanging), ("b", hanging), ("c", failing)]  # type: ignore[attr-defined]
    begin = time.monotonic()
    assert agent.main(["--quick"]) == 0
    assert time.monotonic() - begin < 5
    unseen = json.loads(capsys.readouterr().out)["unseen"]
    assert unseen["c"] == "the time for all sources is over"


def test_an_endless_source_is_stopped(agent: ModuleType) -> None:
    begin = time.monotonic()
    rows, reason = agent.read_source(endless, 30)
    assert reason.startswith(f"more than {agent.MOST_BYTES} bytes")
    assert len(rows) * 1000 < MAX_BYTES
    assert time.monotonic() - begin < 20


def test_secrets_of_the_command_line_stay_there(agent: ModuleType, tmp_path: Path) -> None:
    put(tmp_path, {"proc/cmdline": "root=/dev/sda rd.iscsi.password=hush mitigations=off nosmt"})
    assert facts(agent, "system")["system"]["boot_words"] == {"mitigations": "off", "nosmt": "set"}


def test_a_fifo_and_a_link_to_a_device_are_never_waited_for(
    agent: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "proc").mkdir()
    os.mkfifo(tmp_path / "proc/cmdline")
    (tmp_path / "proc/meminfo").symlink_to("/dev/zero")
    assert agent.whole("proc/cmdline") == ""
    assert agent.whole("proc/meminfo") == ""


GUID = "0002:c903:0000:00aa"


def test_rdma_devices_of_a_faked_sysfs(agent: ModuleType, tmp_path: Path) -> None:
    device = "sys/devices/pci0000:00/0000:17:00.0"
    port = f"{device}/infiniband/mlx5_0/ports/1"
    put(
        tmp_path,
        {
            f"{device}/numa_node": "1\n",
            f"{device}/infiniband/mlx5_0/node_guid": f"{GUID}\n",
            f"{device}/infiniband/mlx5_0/fw_ver": "20.31.1014\n",
            f"{port}/state": "4: ACTIVE\n",
            f"{port}/phys_state": "5: LinkUp\n",
            f"{port}/rate": "100 Gb/sec (4X EDR)\n",
            f"{port}/sm_lid": "0x1\n",
            f"{port}/counters/link_downed": "3\n",
            f"{port}/pkeys/0": "0xffff\n",
            f"{port}/pkeys/1": "0x0000\n",
            f"{port}/gid_attrs/types/0": "IB/RoCE v1\n",
            f"{port}/gids/0": "fe80:0000:0000:0000:0002:c903:0000:00aa\n",
            f"{port}/gids/1": "0000:0000:0000:0000:0000:0000:0000:0000\n",
            f"{port}/gid_attrs/types/1": "RoCE v2\n",
            f"{port}/gids/2": "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
            f"{port}/gid_attrs/types/2": "RoCE v2\n",
        },
    )
    (tmp_path / "sys/class/infiniband").mkdir(parents=True)
    place = tmp_path / device / "infiniband/mlx5_0"
    (place / "device").symlink_to("../..")
    (tmp_path / "sys/class/infiniband/mlx5_0").symlink_to(place)
    found = facts(agent, "fabric")["fabric"]["mlx5_0"]
    assert (found["node_guid"], found["numa"], found["software"]) == (GUID, 1, False)
    assert found["ports"]["1"]["state"] == "ACTIVE"
    assert found["ports"]["1"]["counters"] == {"link_downed": 3}
    assert found["ports"]["1"]["pkeys"] == "0xffff"
    assert found["ports"]["1"]["gids"] == {"IB/RoCE v1": 0, "RoCE v2": 1}


def test_quotas_of_control_groups(agent: ModuleType, tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slurm/job_1/step_0\n",
            "sys/fs/cgroup/slurm/job_1/step_0/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slurm/job_1/cpu.max": "50000 100000\n",
        },
    )
    file = "/sys/fs/cgroup/slurm/job_1/cpu.max"
    assert facts(agent, "quota") == {"processor": {"quota": 0.5, "quota_file": file}}
    put(
        tmp_path,
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/job\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
        },
    )
    file = "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us"
    assert facts(agent, "quota") == {"processor": {"quota": 1.5, "quota_file": file}}


def module(size: int, speed: int, running: int, locator: str) -> bytes:
    """Return a structure of type 17 of SMBIOS 2.7 and its texts."""
    body = bytearray(0x22)
    struct.pack_into("<BBH", body, 0, 17, 0x22, 0x1100)
    struct.pack_into("<H", body, 0x0C, size)
    body[0x10] = 1
    struct.pack_into("<H", body, 0x15, speed)
    struct.pack_into("<H", body, 0x20, running)
    return bytes(body) + locator.encode() + b"\0SERIAL\0\0"


def test_modules_of_memory_without_serial_numbers(agent: ModuleType, tmp_path: Path) -> None:
    table = module(16384, 3200, 2933, "DIMM_A1") + module(0, 0, 0, "DIMM_A2")
    put(tmp_path, {"sys/firmware/dmi/tables/DMI": table + bytes([127, 4, 0, 0, 0, 0])})
    assert facts(agent, "modules_of_memory")["memory"] == {
        "modules": {"DIMM_A1": "16384 MiB, 2933 MT/s of 3200"},
        "groups": {"array 1": "16384 MiB in 1 of 2 slots"},
        "slots": {"all": 2, "empty": 1},
    }


@pytest.mark.parametrize("length", range(0, 80, 3))
def test_a_damaged_table_of_firmware_ends(agent: ModuleType, tmp_path: Path, length: int) -> None:
    put(tmp_path, {"sys/firmware/dmi/tables/DMI": module(1, 1, 1, "A")[:length]})
    facts(agent, "modules_of_memory")


def test_the_processes_of_qemu(agent: ModuleType, tmp_path: Path) -> None:
    uuid = "4c4c4544-0000-1000-8000-00000000000A"
    words = ["qemu-system-x86_64", "-name", "guest=vm1,debug-threads=on", "-uuid", uuid]
    words += ["-machine", "pc-q35-7.2,accel=kvm", "-m", "4096", "-object", "secret,data=hush"]
    words += ["-device", '{"driver":"vfio-pci","host":"0000:3b:00.2","id":"hostdev0"}']
    words += ["-device", "vfio-pci,id=b,host=af:00.1", "-device", "virtio-net-pci,host_mtu=9000"]
    put(
        tmp_path,
        {
            "proc/7/comm": "qemu-system-x86\n",
            "proc/7/cmdline": "\0".join([*words, "-overcommit", "mem-lock=on"]) + "\0",
            "proc/7/status": "VmLck:\t 4194304 kB\nVmRSS:\t 100 kB\n",
            "proc/7/task/8/comm": "CPU 0/KVM\n",
            "proc/7/task/8/status": "Cpus_allowed_list:\t3\n",
            "proc/7/task/9/comm": "CPU 1/KVM\n",
            "proc/7/task/9/status": "Cpus_allowed_list:\t0-3\n",
            "proc/9/comm": "bash\n",
            "sys/bus/pci/devices/0000:3b:00.2/numa_node": "0\n",
            "sys/bus/pci/devices/0000:af:00.1/numa_node": "1\n",
        },
    )
    found = facts(agent, "machines")
    (machine,) = found["virtual"]["guests"].items()
    assert machine == (
        uuid.lower(),
        {
            "name": "vm1",
            "machine": "pc-q35-7.2",
            "locked_kib": 4 << 20,
            "resident_kib": 100,
            "memory_locked": True,
            "pins": {"0": "3", "1": "0-3"},
            "devices": {"0000:3b:00.2": 0, "0000:af:00.1": 1},
        },
    )
    assert "hush" not in json.dumps(found)


def test_installed_packages_only(agent: ModuleType, tmp_path: Path) -> None:
    status = "Package: a\nStatus: install ok installed\nVersion: 1:2.0-1\n\n"
    status += "Package: b\nStatus: deinstall ok config-files\nVersion: 3\n"
    put(tmp_path, {"var/lib/dpkg/status": status})
    assert facts(agent, "packages") == {"software": {"packages": {"a": "1:2.0-1"}}}


def test_names_with_dots_and_hostile_names_keep_their_place(agent: ModuleType) -> None:
    found: dict[str, Any] = {}
    agent.put(found, "sysctl." + agent.key("vm.swappiness"), "1")
    agent.put(found, "net." + agent.key("e\x1bth.0") + ".mtu", 9000)
    agent.put(found, "sysctl.vm|swappiness.more", 1)
    assert found == {"sysctl": {"vm.swappiness": "1"}, "net": {"e th.0": {"mtu": 9000}}}
