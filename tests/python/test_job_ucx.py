# SPDX-License-Identifier: Apache-2.0
"""Jobs over UCX: the settings of each MPI, and which UCX is refused, in words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from nearmetal.core.errors import LaunchError
from nearmetal.core.process import Command, Completed, Runner
from nearmetal.job.mpi import Installation, Mpi, Provider, Request, Ucx, settings_for
from nearmetal.job.ucx import check_ucx, find_ucx

UCX = Ucx(Path("/opt/ucx/lib"), Path("/opt/nearmetal/ucx"))
OVER_UCX = Request(Provider.NEARMETAL, ucx=UCX)


@dataclass
class Answering:
    """Stands for the probe."""

    stdout: str
    stderr: str = ""

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        assert timeout_s
        env = command.env or {}
        assert env["LD_LIBRARY_PATH"] == "/opt/ucx/lib"
        assert env["UCX_PLUGIN_PATH"] == "/opt/nearmetal/ucx"
        return Completed(command, 0, self.stdout.encode(), self.stderr.encode(), 0.1)


def probe(stdout: str, stderr: str = "") -> Runner:
    return cast("Runner", Answering(stdout, stderr))


def report(*version: int, components: tuple[str, ...] = ("tcp", "nearmetal")) -> str:
    return "\n" + json.dumps({"version": version, "components": components})


@pytest.mark.parametrize("mpi", [Mpi.OPENMPI4, Mpi.OPENMPI5, Mpi.MPICH5])
def test_the_libraries_of_ucx_come_before_those_of_the_mpi(mpi: Mpi) -> None:
    found = settings_for(Installation(mpi, Path("/opt/mpi")), OVER_UCX)
    assert found.env["LD_LIBRARY_PATH"] == "/opt/ucx/lib:/opt/mpi/lib"
    assert found.env["UCX_PLUGIN_PATH"] == "/opt/nearmetal/ucx"
    assert found.defaults["UCX_TLS"] == "^posix,sysv,xpmem"
    assert "FI_PROVIDER" not in found.env
    words = " ".join(found.options)
    if mpi is Mpi.MPICH5:
        assert found.env["MPIR_CVAR_CH4_NETMOD"] == "ucx"
        assert int(found.env["MPIR_CVAR_CH4_PACK_BUFFER_SIZE"]) >= 64 * 1024
    else:
        assert "--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any" in words
        assert ("opal_mem_hooks 0" in words) is (mpi is Mpi.OPENMPI4)


def test_the_mpi_of_the_system_gets_ucx_alone() -> None:
    found = settings_for(Installation(Mpi.OPENMPI4, Path("/usr")), OVER_UCX)
    assert found.env["LD_LIBRARY_PATH"] == "/opt/ucx/lib"


def test_what_has_no_way_over_ucx_is_refused() -> None:
    with pytest.raises(LaunchError, match="Intel MPI has no transport over UCX"):
        settings_for(Installation(Mpi.IMPI, Path("/opt/mpi")), OVER_UCX)
    colon = Request(Provider.NEARMETAL, ucx=Ucx(Path("/a:b"), UCX.plugin))
    with pytest.raises(LaunchError, match="/a:b contains a colon"):
        settings_for(Installation(Mpi.MPICH5, Path("/opt/mpi")), colon)


def test_the_right_ucx_is_accepted() -> None:
    check_ucx(UCX, probe("noise" + report(1, 22, 0)))


@pytest.mark.parametrize(
    ("stdout", "stderr", "words"),
    [
        (report(1, 13, 1), "", r"/opt/ucx/lib is 1\.13\.1: nearmetal's transport is for UCX 1\.22"),
        (report(1, 23, 0), "", r"is 1\.23\.0"),
        (report(1, 22, 0, components=("tcp",)), "it is\x1b bad", "does not load .*it is.* bad"),
        (report(1, 22, 0, components=()), "", "it gives no reason"),
        ("", "libucp.so.0: cannot open", "cannot be loaded: libucp.so.0: cannot open"),
        ("[1]", "", "cannot be loaded: no answer"),
        ('{"version": ["x"], "components": []}', "", "cannot be loaded"),
        ('{"version": [1, 22], "components": 7}', "", "cannot be loaded"),
    ],
)
def test_another_ucx_is_refused(stdout: str, stderr: str, words: str) -> None:
    with pytest.raises(LaunchError, match=words) as caught:
        check_ucx(UCX, probe(stdout, stderr))
    assert caught.value.hint
    assert "\x1b" not in caught.value.message


def test_a_directory_without_ucx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEARMETAL_UCX", str(tmp_path))
    with pytest.raises(LaunchError, match=f"NEARMETAL_UCX={tmp_path}: no libucp.so.0 there"):
        find_ucx(probe(""))
