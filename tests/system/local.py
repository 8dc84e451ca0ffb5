# SPDX-License-Identifier: Apache-2.0
"""What the system tests of the local backend share: a cluster of their own, and its traces."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.documents import check_document

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
UID = 64321
"""An ordinary user without an account: namespaces need none."""

NAMESPACES = ("pid", "mnt", "net", "uts", "ipc", "user")


OF_OTHER_TESTS = ("nearmetal-test-", "nearmetal-walk-")
"""Names in /dev/shm of tests/python, tests/unit and tests/faults, which may run beside."""


@dataclass
class Site:
    """A state directory of its own and the command line on it."""

    directory: Path
    uid: int = 0
    program: str = "nearmetal"
    seen: set[str] = field(default_factory=set)
    newest: int = 0
    shm: set[str] = field(default_factory=lambda: {p.name for p in Path("/dev/shm").iterdir()})

    @property
    def state(self) -> Path:
        return self.directory / "state"

    def command(self, *args: str) -> list[str]:
        user = [f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        start = ["setpriv", *user] if self.uid else []
        return [*start, sys.executable, "-m", self.program, *args]

    def environment(self) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("NEARMETAL_", "OMPI_"))}
        return env | {
            "NEARMETAL_STATE_DIR": str(self.state),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(self.directory),
        }

    def start(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*args),
            env=self.environment(),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, *args: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        with self.start(*args) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def ok(self, *args: str, timeout: float = 60) -> str:
        done = self.run(*args, timeout=timeout)
        assert done.returncode == 0, f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *args: str) -> dict[str, Any]:
        verb, *rest = args
        data = json.loads(self.run(verb, "--json", *rest).stdout)
        assert isinstance(data, dict)
        if self.program == "nearmetal":
            check_document(verb, data)
        return data

    def write(self, name: str, text: str) -> str:
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o644)
        return str(path)

    def look(self, spec: str) -> None:
        """Remember the namespaces of every process of the cluster, to miss them later."""
        pids = {node["pid"] for node in self.json("status", spec)["nodes"]}
        for record in self.state.glob("clusters/*/init.json"):
            pids.add(json.loads(record.read_text())["pid"])
        for pid in pids - {0}:
            self.seen |= namespaces_of(pid)
            ticks = start_ticks(pid)
            self.newest = max(self.newest, 0 if ticks == sys.maxsize else ticks)
        self.seen -= namespaces_of(os.getpid())

    def assert_no_trace(self) -> None:
        """No namespace, mount, device or file of the cluster is left; processes get a moment."""
        deadline = time.monotonic() + 5
        left = self.traces()
        while left and time.monotonic() < deadline:
            time.sleep(0.02)
            left = self.traces()
        assert left == [], f"left: {left}"

    def traces(self) -> list[str]:
        found = [f"file {path}" for path in (self.state,) if path.exists()]
        marker = str(self.directory).encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                # The kernel gives the numbers of freed namespaces to new ones at once.
                if start_ticks(entry.name) <= self.newest:
                    shared = namespaces_of(entry.name) & self.seen
                    found += [f"{entry.name} in {name}" for name in shared]
                with contextlib.suppress(OSError):
                    if b"init.py" in (entry / "cmdline").read_bytes() and marker in (
                        (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                    ):
                        found.append(f"process {entry.name}")
        mounts = Path("/proc/self/mountinfo").read_text()
        found += [line for line in mounts.splitlines() if str(self.directory) in line]
        links = {path.name for path in Path("/sys/class/net").iterdir()}
        found += [f"device {name}" for name in links & {"br0", "v11", "v12"}]
        fresh = [p for p in Path("/dev/shm").glob("nearmetal*") if p.name not in self.shm]
        found += [f"shm {p}" for p in fresh if not p.name.startswith(OF_OTHER_TESTS)]
        return found


def namespaces_of(pid: int | str) -> set[str]:
    found = set()
    for name in NAMESPACES:
        with contextlib.suppress(OSError):
            found.add(str((Path("/proc") / str(pid) / "ns" / name).readlink()))
    return found


def start_ticks(pid: int | str) -> int:
    """When a process started, in ticks since boot; a very late time when it is gone."""
    try:
        text = (Path("/proc") / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return sys.maxsize
    return int(text.rpartition(")")[2].split()[19])


def user_can_read_checkout() -> bool:
    """Whether an ordinary user may start what is under test."""
    paths = [ROOT / "nearmetal/core/process.py", Path(sys.executable)]
    probe = (
        f"import os, sys; sys.exit(not all(os.access(p, os.R_OK) for p in {list(map(str, paths))}))"
    )
    user = [f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
    done = subprocess.run(
        ["setpriv", *user, sys.executable, "-c", probe], check=False, capture_output=True
    )
    return done.returncode == 0


@contextlib.contextmanager
def site(uid: int = 0) -> Iterator[Site]:
    """A Site in a directory that the user owns; whatever happens, its clusters are ended."""
    directory = Path(tempfile.mkdtemp(prefix="nearmetal-test-"))
    directory.chmod(0o755)
    if uid:
        os.chown(directory, uid, uid)
    place = Site(directory, uid)
    try:
        yield place
    finally:
        for path in sorted(place.state.glob("clusters/*")):
            place.run("down", "--yes", path.name)
        for record in place.state.glob("clusters/*/init.json"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                os.kill(json.loads(record.read_text())["pid"], 9)
        shutil.rmtree(directory, ignore_errors=True)
