# SPDX-License-Identifier: Apache-2.0
"""What a process outside of a container opened is released when the job is reclaimed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nearmetal.cli.slurm import show_status
from nearmetal.cli.view import View
from nearmetal.core.process import LocalRunner
from nearmetal.slurm import holder
from nearmetal.slurm.backend import ThisNode
from nearmetal.slurm.reclaim import reclaim
from nearmetal.slurm.records import Container, directory_of, of_job
from nearmetal.slurm.remains import holders
from tests.python.test_slurm import no_vfs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces and mounts as root")

USER = 65534
SIZE = 1 << 20
PLACE = "/dev/shm"

INTRUDER = """
import mmap, os, sys
root = f"/proc/{sys.argv[1]}/root/dev/shm"
how = sys.argv[2]
if how == "file":
    kept = os.open(f"{root}/big", os.O_RDWR)
elif how == "map":
    fd = os.open(f"{root}/big", os.O_RDWR)
    kept = mmap.mmap(fd, 1 << 20)
    os.close(fd)
elif how == "directory":
    os.chdir(root)
    kept = None
else:
    kept = os.open(f"/proc/{sys.argv[1]}/ns/mnt", os.O_RDONLY)
os.setuid(65534)
print("ready", flush=True)
for line in sys.stdin:
    if how == "file":
        print(os.fstat(kept).st_blocks, flush=True)
        print(os.pwrite(kept, bytes(1 << 20), 0), flush=True)
    elif how == "directory":
        stat = os.statvfs(".")
        print((stat.f_blocks - stat.f_bfree) * stat.f_frsize, flush=True)
        print(os.listdir("."), flush=True)
    else:
        print("", "", sep="\\n", flush=True)
"""


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    """A container of user 65534 with a file of a mebibyte in its /dev/shm."""
    directory = directory_of(tmp_path, 5)
    directory.mkdir()
    about = {"uid": USER, "node": "", "since": 5, "request": "r"}
    (directory / "about").write_text(json.dumps(about))

    def body() -> None:
        pid = holder.own_pid()
        begin = holder.start_ticks(pid)
        holder.mount(None, "/", holder.MS_REC | holder.MS_SLAVE)
        holder.mount("tmpfs", PLACE, holder.MS_NOSUID, "mode=1777,size=8m")
        (Path(PLACE) / "big").write_bytes(bytes(SIZE))
        (Path(PLACE) / "big").chmod(0o666)
        (directory / "holder").write_text(f"{pid} {begin}\n")

    child = os.fork()
    if child == 0:
        holder.hold(body)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    found = of_job(5, tmp_path)
    assert found is not None
    assert found.lives()
    yield found
    reclaim(5, tmp_path, vfs=no_vfs(tmp_path))


@pytest.mark.parametrize("how", ["file", "map", "directory", "namespace"])
def test_what_another_process_holds_costs_no_memory_and_is_named(
    how: str, container: Container, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = container.directory.parent
    # The script opens as root; a process of the user could if it may trace the container.
    argv = [sys.executable, "-c", INTRUDER, str(container.pid), how]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as intruder:
        assert intruder.stdin is not None
        assert intruder.stdout is not None
        try:
            assert intruder.stdout.readline() == "ready\n"
            assert reclaim(5, state, vfs=no_vfs(tmp_path))
            intruder.stdin.write("now\n")
            intruder.stdin.flush()
            answers = [intruder.stdout.readline().strip() for _ in range(2)]
            if how == "file":
                assert answers == ["0", "4096"], "one page is left to write to"
            elif how == "directory":
                assert answers == ["0", "[]"]
            assert intruder.poll() is None
            assert [one.pid for one in holders(state)] == [intruder.pid]
            assert f"process {intruder.pid} of user {USER}" in capsys.readouterr().err
            view = View(as_json=False)
            assert show_status(LocalRunner(), ThisNode(state), view, no_vfs(tmp_path)) == 4
            assert f"process {intruder.pid} of user {USER} held" in capsys.readouterr().err
        finally:
            intruder.kill()
    assert holders(state) == ()
    assert not list(state.glob("held-*"))


def test_nothing_is_recorded_where_nothing_is_held(container: Container, tmp_path: Path) -> None:
    state = container.directory.parent
    with subprocess.Popen(["/bin/sleep", "600"], user=USER) as other:
        try:
            assert reclaim(5, state, vfs=no_vfs(tmp_path))
            assert other.poll() is None
        finally:
            other.kill()
    assert holders(state) == ()
    assert not list(state.glob("held-*"))
