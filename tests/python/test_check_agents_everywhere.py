# SPDX-License-Identifier: Apache-2.0
"""Both agents of `check` change nothing, as root and as a user, and run on old Pythons and shells.

An interpreter or shell that this machine lacks is skipped: which ones it has is its own matter.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nearmetal.check.collect import python_argv
from nearmetal.check.snapshot import parse_snapshot
from tests.system.check_tree import make_tree

AGENTS = Path(__file__).parents[2] / "nearmetal/share/check"
READS, MEASURES = AGENTS / "agent.py", AGENTS / "measure.py"
LOADER = "import sys; exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
"""How nearmetal starts the agent that measures."""

SYSTEM = "/usr/bin/python3"
"""A Python that any user may run."""

USERS = {
    "as root": (),
    "as a user": ("setpriv", "--reuid=64321", "--regid=64321", "--clear-groups", "--"),
}

OPENS = re.compile(r"\b(open|openat|openat2|creat)\((.*)")
WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND|\bcreat\(|O_TMPFILE")
CHANGES = """
mkdir mkdirat rename renameat renameat2 unlink unlinkat rmdir link linkat symlink symlinkat
truncate ftruncate fallocate chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat mknod
mknodat mount umount2 move_mount open_tree fsopen mount_setattr pivot_root chroot unshare setns
mq_open io_uring_setup keyctl quotactl swapon fanotify_init setxattr lsetxattr fsetxattr
removexattr utime utimes utimensat futimesat
init_module finit_module delete_module settimeofday clock_settime clock_adjtime adjtimex
sethostname setdomainname reboot swapoff setrlimit ioctl kexec_load bpf shmget msgget
semget memfd_create
"""
"""Calls that could change a node. Of `ioctl`, only questions about a stream are allowed."""

QUESTIONS = re.compile(r"ioctl\(\d+, (TCGETS|TIOCGWINSZ|FIOCLEX|FIONBIO|FIONCLEX)\b")
"""Questions about a stream, and settings of the agent's own sockets."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="users are changed as root")
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def assert_nothing_changed(log: Path, user: str) -> None:
    """Assert that a trace opens no file to write, changes nothing, and starts only the Python.

    A change of the user is a program before it.
    """
    lines = log.read_text(errors="replace").splitlines()
    lines = [line for line in lines if " +++ " not in line and " --- " not in line]
    opened = [line for line in lines if OPENS.search(line)]
    assert len(opened) > 50
    assert [line for line in opened if WRITES.search(line)] == []
    others = [line for line in lines if not OPENS.search(line) and not QUESTIONS.search(line)]
    assert [line for line in others if "execve(" not in line and "resumed>" not in line] == []
    begun = [line for line in others if "execve(" in line]
    assert len(begun) == (2 if USERS[user] else 1), begun


def traced(log: Path) -> tuple[str, ...]:
    """Return the words that trace a program and all of its children."""
    calls = ["open", "openat", "openat2", "creat", "execve", "execveat", *CHANGES.split()]
    known = ",".join(f"?{call}" for call in calls)
    return ("strace", "-f", "-qq", "-o", str(log), "-e", f"trace={known}")


def trial(argv: Sequence[str], options: Sequence[str] = ()) -> bytes:
    """Run the agent that reads with a Python; return its snapshot."""
    done = subprocess.run(
        [*argv, "-I", "-S", "-B", "-", *options],
        input=READS.read_bytes(),
        capture_output=True,
        check=True,
        timeout=120,
    )
    assert done.stderr == b""
    return done.stdout


@needs_root
@needs_strace
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("options", [(), ("--quick",)], ids=["all", "quick"])
def test_the_agent_that_reads_changes_nothing(
    user: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    log = tmp_path / "trace"
    content = trial([*traced(log), *USERS[user], SYSTEM], options)
    snapshot = parse_snapshot(content, "here", "here")
    assert snapshot.text("system", "kernel") == os.uname().release
    assert snapshot.root == (user == "as root")
    assert_nothing_changed(log, user)


@dataclass
class Measuring:
    """An agent that measures, and its port."""

    process: subprocess.Popen[bytes]
    port: int = 0

    def say(self, words: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        words: dict[str, Any] = json.loads(self.process.stdout.readline())
        return words


@contextlib.contextmanager
def measuring(argv: Sequence[str]) -> Iterator[Measuring]:
    """Start the agent that measures with a Python, as nearmetal does."""
    with subprocess.Popen(
        [*argv, "-I", "-S", "-B", "-c", LOADER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        agent = Measuring(process)
        try:
            text = MEASURES.read_bytes()
            assert process.stdin is not None
            process.stdin.write(b"%d\n" % len(text) + text)
            agent.say({"address": "127.0.0.1"})
            agent.port = agent.hear()["port"]
            yield agent
            _, words = process.communicate(timeout=60)
            assert (words, process.returncode) == (b"", 0)
        finally:
            process.kill()


def measure_all(first: Sequence[str], second: Sequence[str]) -> None:
    """Have two agents measure themselves and the traffic between them."""
    with measuring(first) as one, measuring(second) as two:
        for number, quantity in enumerate(("memory", "processor", "latency", "bandwidth"), 1):
            order = {"measure": quantity, "seconds": 0.05, "limit": 60, "key": "k" * 32}
            peer = {"peer": ["127.0.0.1", two.port]} if number > 2 else {}
            one.say(order | peer | {"number": number})
            two.say(order | {"number": 10 * number})
            for agent, own in ((one, number), (two, 10 * number)):
                answer = agent.hear()
                assert answer["number"] == own
                assert answer["value"] > 0, answer


@needs_root
@needs_strace
@pytest.mark.parametrize("user", USERS)
def test_the_agent_that_measures_changes_nothing(user: str, tmp_path: Path) -> None:
    logs = tmp_path / "one", tmp_path / "two"
    one, two = ([*traced(log), *USERS[user], SYSTEM] for log in logs)
    measure_all(one, two)
    for log in logs:
        assert_nothing_changed(log, user)


def python(version: str) -> str:
    """Return an interpreter of a version, or skip the test."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]
    found += [f"{folder}/python{version}" for folder in ("/usr/bin", "/usr/local/bin")]
    for path in found:
        if os.access(path, os.X_OK):
            return path
    pytest.skip(f"no Python {version}")


def facts_of(content: bytes) -> dict[str, Any]:
    """Return the facts that do not depend on the Python and the moment."""
    facts: dict[str, Any] = json.loads(content)["facts"]
    for name in ("storage", "names"):
        del facts[name]
    for name in ("python", "glibc"):
        del facts["software"][name]
    for name in ("shm_bytes", "shm_free"):
        del facts["nearmetal"][name]
    return facts


@pytest.mark.parametrize("version", ["3.6", "3.7", "3.9", "3.11", "3.13"])
def test_both_agents_run_on_a_python(version: str, tmp_path: Path) -> None:
    other = [python(version)]
    make_tree(tmp_path / "node", "machine", 1)
    root = [f"--root={tmp_path / 'node'}"]
    content = trial(other, root)
    assert json.loads(content)["unseen"] == {}
    assert json.loads(content)["facts"]["software"]["python"].startswith(version + ".")
    assert facts_of(content) == facts_of(trial([sys.executable], root))
    measure_all(other, other)


def test_a_node_with_nothing_but_busybox_and_python(tmp_path: Path) -> None:
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("busybox is not installed")
    for name, target in (("sh", busybox), ("python3", sys.executable)):
        (tmp_path / name).symlink_to(target)
    command, *words = python_argv("-")

    def ended() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [str(tmp_path / command), *words],
            input=READS.read_bytes(),
            capture_output=True,
            check=False,
            timeout=120,
            env={"PATH": str(tmp_path)},
        )

    done = ended()
    assert (done.returncode, done.stderr) == (0, b"")
    assert parse_snapshot(done.stdout, "n", "n").text("system", "kernel")
    (tmp_path / "python3").unlink()
    done = ended()
    # Some systems have a Python of their own besides.
    if not Path("/usr/libexec/platform-python").exists():
        assert (done.returncode, done.stderr) == (127, b"it has no python3\n")


def test_a_node_without_any_file_of_a_kernel(tmp_path: Path) -> None:
    found = parse_snapshot(trial([sys.executable], [f"--root={tmp_path}"]), "n", "n")
    assert not found.unseen
    assert found.table("limits")
