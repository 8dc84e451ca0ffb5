# SPDX-License-Identifier: Apache-2.0
"""A cluster on this machine: isolation, idempotence, and no trace after `down`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.system.local import UID, Site, namespaces_of, site, user_can_read_checkout

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

SPEC = """\
version: 1
name: test
backend: local
network: {mtu: 1400}
hosts:
  - name: h1
    segments: 8 MiB
    nodes:
      - {name: n1, shm: 16 MiB}
      - {name: n2, shm: 16 MiB, hostname: other-name}
  - name: h2
    nodes:
      - {name: n3}
"""


@pytest.fixture(params=["root", "user"])
def place(request: pytest.FixtureRequest) -> Iterator[Site]:
    if os.geteuid() != 0 and request.param == "root":
        pytest.skip("the tests do not run as root")
    uid = UID if request.param == "user" and os.geteuid() == 0 else 0
    if uid and not user_can_read_checkout():
        pytest.skip("an ordinary user cannot read this checkout")
    with site(uid) as made:
        yield made


@pytest.fixture
def spec(place: Site) -> str:
    return place.write("spec.yaml", SPEC)


def node(place: Site, spec: str, name: str, *argv: str) -> str:
    return place.ok("exec", spec, name, "--", *argv)


def test_up_status_down_and_nothing_is_left(place: Site, spec: str) -> None:
    assert place.run("plan", spec).returncode == 3
    place.ok("up", spec)
    assert place.run("plan", spec).returncode == 0
    assert "nothing to do" in place.ok("plan", spec)
    status = place.json("status", spec)
    assert status["state"] == "up"
    assert [(n["name"], n["host"], n["address"]) for n in status["nodes"]] == [
        ("n1", "h1", "10.77.0.11"),
        ("n2", "h1", "10.77.0.12"),
        ("n3", "h2", "10.77.0.13"),
    ]
    assert all(n["healthy"] and n["pid"] > 1 for n in status["nodes"])
    assert place.state.stat().st_mode & 0o777 == 0o700
    place.look(spec)
    assert len(place.seen) >= 4 * 5
    before = [n["pid"] for n in status["nodes"]]
    place.ok("up", spec)
    assert [n["pid"] for n in place.json("status", spec)["nodes"]] == before
    place.ok("down", "--yes", "test")
    place.assert_no_trace()
    assert "was not up" in place.ok("down", "--yes", spec)
    assert place.json("status", spec)["state"] == "down"


def test_nodes_are_isolated(place: Site, spec: str) -> None:
    place.ok("up", spec)
    pids = [n["pid"] for n in place.json("status", spec)["nodes"]]
    shared = namespaces_of(pids[0]) & namespaces_of(pids[1])
    assert all(name.startswith("user:") for name in shared)
    assert not any(n.startswith("user:") for n in shared & namespaces_of(os.getpid())) or (
        place.uid == 0
    )
    assert node(place, spec, "n1", "hostname").strip() == "n1"
    assert node(place, spec, "n2", "hostname").strip() == "other-name"
    for directory in ("/tmp", "/dev/shm", "/run"):
        node(place, spec, "n1", "touch", f"{directory}/mine")
        assert "mine" not in node(place, spec, "n2", "ls", directory)
        assert not Path(directory, "mine").exists()
    done = place.run("exec", spec, "n1", "--", "touch", "/usr/mine")
    assert done.returncode != 0
    assert "Read-only file system" in done.stderr
    processes = node(place, spec, "n1", "sh", "-c", "ls -d /proc/[0-9]* | wc -l")
    assert int(processes) < 8
    assert node(place, spec, "n1", "cat", "/proc/1/comm").strip().startswith("python")


def test_windows_meet_only_on_one_host(place: Site, spec: str) -> None:
    place.ok("up", spec)
    node(place, spec, "n1", "touch", "/run/nearmetal/token", "/run/shared/file")
    assert "token" in node(place, spec, "n2", "ls", "/run/nearmetal")
    assert "file" in node(place, spec, "n2", "ls", "/run/shared")
    assert node(place, spec, "n3", "ls", "/run/nearmetal", "/run/shared").split() == [
        "/run/nearmetal:",
        "/run/shared:",
    ]
    mounts = node(place, spec, "n3", "cat", "/proc/self/mountinfo")
    assert "segments/h1" not in mounts
    # Even who undoes the mounts of a node finds no other host's directory beneath.
    probe = "umount -l /run/nearmetal /run 2>/dev/null; find /run /tmp /dev/shm -name token"
    assert node(place, spec, "n3", "sh", "-c", probe) == ""


def test_a_full_window_directory_is_refused_by_the_kernel(place: Site, spec: str) -> None:
    place.ok("up", spec)
    fill = "head -c 9M /dev/zero > /run/nearmetal/big"
    done = place.run("exec", spec, "n1", "--", "sh", "-c", fill)
    assert done.returncode != 0
    assert "No space left" in done.stderr
    assert (
        place.run(
            "exec", spec, "n1", "--", "sh", "-c", "head -c 17M /dev/zero > /dev/shm/b"
        ).returncode
        != 0
    )


def test_the_network_joins_all_nodes(place: Site, spec: str) -> None:
    place.ok("up", spec)
    hosts = node(place, spec, "n3", "cat", "/etc/hosts").splitlines()
    assert hosts[:2] == ["127.0.0.1 localhost", "10.77.0.13 n3"]
    assert {"10.77.0.1 launcher", "10.77.0.11 n1", "10.77.0.12 n2 other-name"} <= set(hosts)
    assert "mtu 1400" in node(place, spec, "n1", "ip", "link", "show", "eth0")
    listen = (
        "import socket; s = socket.create_server(('0.0.0.0', 7777)); s.settimeout(20); "
        "print('ready', flush=True); c, a = s.accept(); print(a[0], c.recv(9).decode())"
    )
    with place.start("exec", spec, "n3", "--", "python3", "-c", listen) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        say = "import socket; socket.create_connection(('n3', 7777), 20).send(b'hello')"
        node(place, spec, "n1", "python3", "-c", say)
        assert server.stdout.readline() == "10.77.0.11 hello\n"
        server.wait(20)


def test_each_node_has_its_own_cores(place: Site, spec: str) -> None:
    place.ok("up", spec)
    for entry in place.json("status", spec)["nodes"]:
        listed = node(
            place, spec, entry["name"], "sh", "-c", "grep Cpus_allowed_list /proc/self/status"
        )
        assert listed.split()[1] == ",".join(map(str, entry["cpus"]))


def test_process_1_reaps_orphans(place: Site, spec: str) -> None:
    place.ok("up", spec)
    node(place, spec, "n1", "sh", "-c", "for i in 1 2 3 4 5; do (sleep 0.05 &) ; done; sleep 0.5")
    states = node(place, spec, "n1", "sh", "-c", "grep -h ^State /proc/[0-9]*/status; true")
    assert "sleeping" in states
    assert "zombie" not in states


def test_exec_passes_arguments_and_exit_codes(place: Site, spec: str) -> None:
    place.ok("up", spec)
    assert node(place, spec, "n1", "printf", "%s|", "a  b", "c'd", "$HOME") == "a  b|c'd|$HOME|"
    assert place.run("exec", spec, "n1", "--", "sh", "-c", "exit 7").returncode == 7
    data = place.json("exec", spec, "n2", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (data["stdout"], data["stderr"], data["exit_code"]) == ("out\n", "err\n", 3)
    done = place.run("exec", spec, "n9", "--", "true")
    assert done.returncode == 2
    assert "nodes: n1, n2, n3, launcher" in done.stderr
    assert "10.77.0.1/24" in place.ok("exec", spec, "launcher", "--", "ip", "addr", "show", "br0")


def test_shown_directories_are_seen_read_only(place: Site) -> None:
    shown = place.directory / "shown"
    shown.mkdir()
    (shown / "file").write_text("content")
    shown.chmod(0o755)
    text = SPEC.replace("name: test", f"name: test\nshow: ['{shown}']")
    other = place.write("show.yaml", text)
    place.ok("up", other)
    assert node(place, other, "n1", "cat", f"{shown}/file") == "content"
    assert place.run("exec", other, "n1", "--", "touch", f"{shown}/x").returncode != 0
    assert not (shown / "x").exists()
    assert "nearmetal-test" not in node(place, other, "n1", "ls", str(place.directory))


def test_a_dead_node_is_seen_and_made_again(place: Site, spec: str) -> None:
    place.ok("up", spec)
    status = place.json("status", spec)
    os.kill(status["nodes"][1]["pid"], 9)
    done = place.run("status", spec)
    assert done.returncode == 4
    assert "process 1 is gone" in done.stdout
    assert place.run("exec", spec, "n2", "--", "true").returncode == 1
    place.ok("up", spec)
    after = place.json("status", spec)
    assert after["state"] == "up"
    assert after["nodes"][0]["pid"] == status["nodes"][0]["pid"]


REFUSED = """
import errno, socket, sys
with socket.socket() as one:
    one.settimeout(10)
    print(errno.errorcode[one.connect_ex((sys.argv[1], 9))])
"""


def test_the_neighbours_of_a_node_that_is_made_again_reach_it(place: Site, spec: str) -> None:
    """They remember its MAC address for over a minute."""
    place.ok("up", spec)
    second = place.json("status", spec)["nodes"][1]
    reach = (sys.executable, "-c", REFUSED, second["address"])
    assert node(place, spec, "n1", *reach).strip() == "ECONNREFUSED"
    os.kill(second["pid"], 9)
    place.ok("up", spec)
    assert node(place, spec, "n1", *reach).strip() == "ECONNREFUSED"


def test_another_spec_of_the_same_name(place: Site, spec: str) -> None:
    place.ok("up", spec)
    other = place.write("other.yaml", SPEC.replace("shm: 16 MiB}", "shm: 32 MiB}"))
    done = place.run("up", other)
    assert done.returncode == 1
    assert "already up under another spec" in done.stderr
    assert "~ node n1: shm 16 MiB -> 32 MiB" in done.stderr
    assert "--replace" in done.stderr
    assert place.run("exec", other, "n1", "--", "true").returncode == 1
    place.ok("up", "--yes", "--replace", other)
    assert place.run("plan", other).returncode == 0
    place.look(other)
    place.ok("down", "--yes", other)
    place.assert_no_trace()


def test_the_machine_that_forgot_the_cluster(place: Site, spec: str) -> None:
    place.ok("up", spec)
    place.look(spec)
    record = next(place.state.glob("clusters/*/init.json"))
    subprocess.run(["kill", "-9", record.read_text().split('"pid": ')[1].split(",")[0]], check=True)
    assert "unfinished or dead" in place.run("plan", spec).stdout
    place.ok("up", spec)
    assert place.run("plan", spec).returncode == 0
    place.ok("down", "--yes", spec)
    place.assert_no_trace()


SHARED_PIDS = """\
version: 1
name: test
backend: local
hosts:
  - name: h1
    nodes: [{name: n1, pids: cluster}, {name: n2, pids: cluster}, {name: n3}]
"""


def test_nodes_may_share_a_pid_namespace_and_nothing_else(place: Site) -> None:
    spec = place.write("spec.yaml", SHARED_PIDS)
    place.ok("up", spec)
    names = ("pid", "mnt", "net", "ipc", "uts")
    seen = {
        name: node(place, spec, name, "readlink", *(f"/proc/self/ns/{n}" for n in names)).split()
        for name in ("n1", "n2", "n3")
    }
    assert seen["n1"][0] == seen["n2"][0] != seen["n3"][0]
    assert all(len({ns[i] for ns in seen.values()}) == 3 for i in range(1, len(names)))
    # What runs in such a node ends with it, although its process 1 is no process 1.
    smaller = place.write("smaller.yaml", SHARED_PIDS.replace("{name: n1, pids: cluster}, ", ""))
    sleeper = place.start("exec", spec, "n1", "--", "sleep", "1000")
    try:
        deadline = time.monotonic() + 40
        while place.run("exec", spec, "n2", "--", "pgrep", "-x", "sleep").returncode != 0:
            assert time.monotonic() < deadline
        place.ok("up", "--yes", "--replace", smaller)
        sleeper.communicate(timeout=40)
        assert sleeper.returncode != 0
    finally:
        sleeper.kill()
        sleeper.communicate()
    place.ok("down", "--yes", "test")
    place.assert_no_trace()
