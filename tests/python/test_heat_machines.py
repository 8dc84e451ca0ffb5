# SPDX-License-Identifier: Apache-2.0
"""What a machine of a Heat stack makes of its metadata, as a program of its own."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from nearmetal.core.resources import share
from tests.system.need import lacking

PROGRAM = share("heat", "machines.py")
META = {
    "nearmetal": "vm",
    "nm-mpi-instance-10": "10.40.0.20 10.99.0.30",
    "nm-mpi-instance-2": "10.40.0.12 10.99.0.22",
    "nm-mpi-instance-0": "10.40.0.10",
}


class Service(http.server.BaseHTTPRequestHandler):
    """In place of Nova's metadata service."""

    answer: ClassVar[bytes] = b""
    broken: ClassVar[bool] = False

    def do_GET(self) -> None:
        if self.broken:
            self.wfile.write(b"not HTTP\r\n\r\n")
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def run(root: Path, url: str, answer: object) -> subprocess.CompletedProcess[str]:
    """Run the program with another address of the service; None is an answer that is no HTTP."""
    Service.broken = answer is None
    Service.answer = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    text = PROGRAM.read_text()
    line = 'METADATA = "http://169.254.169.254/openstack/latest/meta_data.json"'
    assert line in text
    program = root.parent / "program.py"
    program.write_text(text.replace(line, f"METADATA = {url!r}"))
    tools = root.parent / "bin"
    return subprocess.run(
        [sys.executable, program, root],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tools), "http_proxy": "http://127.0.0.1:9"},
        timeout=60,
    )


def files(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    (made / "etc").mkdir(parents=True)
    (made / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    (tmp_path / "bin").mkdir()
    return made


def test_names_and_host_files_follow_the_metadata(root: Path, service: str) -> None:
    assert run(root, service, {"meta": META}).returncode == 0
    found = files(root)
    assert found["etc/hosts"].splitlines() == [
        "127.0.0.1 localhost",
        "# nearmetal: machines of the stack",
        "10.40.0.10 mpi-instance-0",
        "10.40.0.12 mpi-instance-2",
        "10.40.0.20 mpi-instance-10",
        "10.99.0.22 mpi-instance-2-fabric",
        "10.99.0.30 mpi-instance-10-fabric",
        "# nearmetal: end",
    ]
    slots = len(os.sched_getaffinity(0))
    names = ["mpi-instance-0", "mpi-instance-2", "mpi-instance-10"]
    assert found["etc/nearmetal/hostfile"].splitlines() == [f"{n} slots={slots}" for n in names]
    assert found["etc/nearmetal/hosts"].splitlines() == [f"{n}:{slots}" for n in names]
    assert found["etc/nearmetal/machines"].splitlines()[0] == "mpi-instance-0 10.40.0.10"
    assert re.findall("Host (.*)", found["etc/ssh/ssh_config.d/nearmetal.conf"]) == names
    assert "This stack has 3 machines" in found["etc/motd.d/nearmetal"]
    assert "There is no mpirun" in found["etc/motd.d/nearmetal"]
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in (root / "etc/nearmetal").iterdir())

    # Nothing is written again; a smaller stack leaves no name of a lost machine.
    before = {path: path.stat().st_ino for path in root.rglob("*") if path.is_file()}
    assert run(root, service, {"meta": META}).returncode == 0
    assert {path: path.stat().st_ino for path in root.rglob("*") if path.is_file()} == before
    less = {key: value for key, value in META.items() if not key.endswith("-10")}
    assert run(root, service, {"meta": less}).returncode == 0
    assert not any("instance-10" in text for text in files(root).values())
    assert files(root)["etc/hosts"].startswith("127.0.0.1 localhost\n# nearmetal")


def test_a_new_machine_of_an_old_name_is_not_taken_for_an_attack(root: Path, service: str) -> None:
    """Its key is new, so ssh must look for the key of another name."""
    if not shutil.which("ssh"):
        lacking("there is no ssh")
    aliases = set()
    for address in ("10.40.0.12", "10.40.0.13"):
        assert run(root, service, {"meta": {**META, "nm-mpi-instance-2": address}}).returncode == 0
        config = str(root / "etc/ssh/ssh_config.d/nearmetal.conf")
        shown = subprocess.run(
            ["ssh", "-G", "-F", config, "mpi-instance-2"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        assert {"forwardagent yes", "stricthostkeychecking accept-new"} <= set(shown)
        aliases |= {line for line in shown if line.startswith("hostkeyalias")}
    assert aliases == {f"hostkeyalias mpi-instance-2-10.40.0.{n}" for n in (12, 13)}


def test_hosts_may_have_any_bytes(root: Path, service: str) -> None:
    line = b"127.0.0.1 localhost # na\xefve\n"
    (root / "etc" / "hosts").write_bytes(line)
    for _ in range(2):
        done = run(root, service, {"meta": META})
        assert done.returncode == 0, done.stderr
        found = (root / "etc" / "hosts").read_bytes()
        assert found.startswith(line + b"# nearmetal")
        assert b"10.40.0.10 mpi-instance-0\n" in found


@pytest.mark.parametrize("kind", ["vm", "host"])
def test_the_greeting_says_what_can_be_run(root: Path, service: str, kind: str) -> None:
    for name in ("mpirun", "nearmetal-info"):
        (root.parent / "bin" / name).touch(0o755)
    assert run(root, service, {"meta": {**META, "nearmetal": kind}}).returncode == 0
    text = files(root)["etc/motd.d/nearmetal"]
    assert f"mpirun -n {3 * len(os.sched_getaffinity(0))} ./program" in text
    assert ("nearmetal host plan" in text) == (kind == "host")


def test_a_login_names_the_host_files_to_all_launchers(root: Path, service: str) -> None:
    assert run(root, service, {"meta": META}).returncode == 0
    script = f". {root}/etc/profile.d/nearmetal.sh; env"
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert "OMPI_MCA_orte_default_hostfile=/etc/nearmetal/hostfile" in shown
    assert "PRTE_MCA_prte_default_hostfile=/etc/nearmetal/hostfile" in shown
    assert "HYDRA_HOST_FILE=/etc/nearmetal/hosts" in shown


def test_the_greeting_of_a_stack_of_one_machine_has_no_plural(root: Path, service: str) -> None:
    assert run(root, service, {"meta": {"nm-mpi-instance-0": "10.40.0.10"}}).returncode == 0
    assert files(root)["etc/motd.d/nearmetal"].startswith("This stack has 1 machine: see")


@pytest.fixture
def copied(root: Path) -> Path:
    """Make the copy of cloud-init, as version 22.4 writes it from a configuration drive."""
    copy = root / "run/cloud-init/instance-data-sensitive.json"
    copy.parent.mkdir(parents=True)
    copy.write_text(json.dumps({"ds": {"ec2_metadata": {}, "meta_data": {"meta": META}}}))
    return root


def test_without_the_service_the_copy_of_the_first_boot_is_used(copied: Path) -> None:
    for _ in range(2):
        assert run(copied, "http://127.0.0.1:9/", b"").returncode == 0
        assert "10.40.0.10 mpi-instance-0" in files(copied)["etc/hosts"]


def test_a_broken_answer_is_like_none(copied: Path, service: str) -> None:
    done = run(copied, service, None)
    assert (done.returncode, done.stderr) == (0, "")
    assert "10.40.0.10 mpi-instance-0" in files(copied)["etc/hosts"]


def test_the_copy_never_replaces_what_the_service_has_said(copied: Path, service: str) -> None:
    more = {**META, "nm-mpi-instance-11": "10.40.0.21"}
    assert run(copied, service, {"meta": more}).returncode == 0
    before = files(copied)
    assert "10.40.0.21 mpi-instance-11" in before["etc/hosts"]
    done = run(copied, "http://127.0.0.1:9/", b"")
    assert done.returncode == 1
    assert "the names stay as they are" in done.stderr
    assert files(copied) == before


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"{", "instance-data"),
        (b"[" * 100_000, "too deep"),
        (b" " * (1 << 20) + b"{}", "longer than 1 MiB"),
        ([], "has no `meta`"),
        ({"meta": []}, "has no `meta`"),
        ({"meta": {}}, "names no machine"),
        ({"meta": {"nm-a": "10.0.0.1\n6.6.6.6 bank 1"}}, "'nm-a'"),
        ({"meta": {"nm-a": "10.0.0.256"}}, "metadata nm-a: '10.0.0.256' is not an IPv4 address"),
        ({"meta": {"nm-a b": "10.0.0.1"}}, "'nm-a b'"),
        ({"meta": {"nm-a\n": "10.0.0.1"}}, "not a name"),
        ({"meta": {"nm-a": 5}}, "'nm-a'"),
        ({"meta": {"nm-a": ""}}, "'nm-a'"),
    ],
)
def test_hostile_metadata_changes_nothing(
    root: Path, service: str, answer: Any, words: str
) -> None:
    before = files(root)
    done = run(root, service, answer)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert files(root) == before


SECRET = "S3cret" * 7
BIG = {
    "nearmetal": "big-data",
    "nearmetal-secret": SECRET,
    "nm-b-0": "10.40.0.10 10.99.0.20",
    "nm-b-1": "10.40.0.11 10.99.0.21",
    "nm-b-10": "10.40.0.12 10.99.0.22",
}


def settings(text: str) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in text.splitlines())


def test_spark_uses_the_addresses_of_the_fast_network(root: Path, service: str) -> None:
    done = run(root, service, {"name": "b-1", "meta": BIG})
    assert done.returncode == 0, done.stderr
    found = files(root)
    assert found["etc/nearmetal/spark/spark-env.sh"].splitlines() == [
        "SPARK_LOCAL_IP=10.99.0.21",
        "SPARK_MASTER_HOST=10.99.0.20",
    ]
    assert settings(found["etc/nearmetal/spark/spark-defaults.conf"]) == {
        "spark.master": "spark://10.99.0.20:7077",
        "spark.driver.host": "10.99.0.21",
        "spark.driver.bindAddress": "10.99.0.21",
        "spark.authenticate": "true",
        "spark.authenticate.secret": SECRET,
        "spark.pyspark.python": "/opt/nearmetal-spark/bin/python",
    }
    assert "spark-submit" in found["etc/motd.d/nearmetal"]
    assert SECRET not in found["etc/motd.d/nearmetal"] + done.stdout + done.stderr


def test_the_daemons_of_spark_are_started_with_the_python_that_has_it() -> None:
    """The scripts of the package look for it with the `python3` of PATH, unless they are told."""
    units = {path.name: path.read_text() for path in PROGRAM.parent.glob("*.service")}
    daemons = [
        text for text in units.values() if "ExecStart=/opt/nearmetal-spark/bin/spark" in text
    ]
    assert len(daemons) == 2
    install = units["nearmetal-spark-install.service"]
    assert "-m venv --system-site-packages /opt/nearmetal-spark\n" in install
    for text in daemons:
        assert "\nEnvironment=PYSPARK_PYTHON=/opt/nearmetal-spark/bin/python " in text


def test_without_a_fast_network_spark_uses_the_other(root: Path, service: str) -> None:
    meta = {**BIG, "nm-b-0": "10.40.0.10", "nm-b-1": "10.40.0.11", "nm-b-10": "10.40.0.12"}
    assert run(root, service, {"name": "b-0", "meta": meta}).returncode == 0
    text = files(root)["etc/nearmetal/spark/spark-env.sh"]
    assert text == "SPARK_LOCAL_IP=10.40.0.10\nSPARK_MASTER_HOST=10.40.0.10\n"


def test_other_stacks_have_no_spark(root: Path, service: str) -> None:
    assert run(root, service, {"name": "mpi-instance-0", "meta": META}).returncode == 0
    assert not [name for name in files(root) if "spark" in name]


@pytest.mark.parametrize(
    ("name", "secret", "words"),
    [
        ("b-7", SECRET, "do not name this server, 'b-7'"),
        (None, SECRET, "do not name this server, 'None'"),
        ("b-0", None, "nearmetal-secret"),
        ("b-0", "short", "nearmetal-secret"),
        ("b-0", f"{SECRET}\nspark.executor.extraJavaOptions -x", "nearmetal-secret"),
    ],
)
def test_hostile_metadata_of_spark_changes_nothing(
    root: Path, service: str, name: object, secret: object, words: str
) -> None:
    before = files(root)
    done = run(root, service, {"name": name, "meta": {**BIG, "nearmetal-secret": secret}})
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert files(root) == before
