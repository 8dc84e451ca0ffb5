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
from nearmetal.job.site import doctor_ucx as say
from nearmetal.job.site.diagnoses import Rating, of_ofi
from nearmetal.job.site.exported import exported, for_launcher
from nearmetal.job.site.found import FoundMpi, LoadedUcx
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


def site_mpi(mpi: Mpi, *, ucx: bool = True, device: str = "") -> FoundMpi:
    return FoundMpi(
        installation=Installation(mpi, Path("/opt/mpi")),
        title=mpi.title,
        device=device,
        launcher=Path("/opt/mpi/bin/mpirun"),
        library=Path("/opt/mpi/lib/libmpi.so"),
        fabrics=(),
        libfabric=None,
        ofi=False,
        source="the test",
        ucx=ucx,
    )


def test_an_mpi_with_ucx_alone_is_shown_the_way() -> None:
    mpich = site_mpi(Mpi.MPICH5, device="ch4:ucx")
    with pytest.raises(LaunchError, match="cannot use libfabric") as caught:
        exported(mpich, Path("/opt/libnearmetal-fi.so"), {})
    assert "add --fabric ucx" in caught.value.hint
    assert of_ofi(mpich, "").remedy.startswith("nearmetal doctor --fabric ucx")


LIST = "OMPI_MCA_mca_base_env_list"


def test_a_launcher_of_a_site_gets_the_variables_of_ucx() -> None:
    five = exported(site_mpi(Mpi.OPENMPI5), UCX, {})
    assert five.prepend == {"LD_LIBRARY_PATH": "/opt/ucx/lib"}
    assert five.set[LIST] == "LD_LIBRARY_PATH;UCX_PLUGIN_PATH;UCX_TLS"
    assert five.set["OMPI_MCA_pml"] == "ucx"
    assert not [name for name in five.set if name.startswith("FI_")]
    mpich = exported(site_mpi(Mpi.MPICH5, device="ch4:ucx"), UCX, {"UCX_TLS": "nearmetal,rc"})
    assert (mpich.set["UCX_TLS"], mpich.set["MPIR_CVAR_NOLOCAL"]) == ("nearmetal,rc", "1")
    four = exported(site_mpi(Mpi.OPENMPI4), UCX, {})
    assert four.notes[0].endswith("-x LD_LIBRARY_PATH -x UCX_PLUGIN_PATH -x UCX_TLS")
    _, words = for_launcher(site_mpi(Mpi.OPENMPI4), UCX, ["-x", "MINE", "./app"], {})
    assert words[:2] == ["-x", "LD_LIBRARY_PATH"]


def test_an_mpi_without_ucx_is_refused() -> None:
    mpich = site_mpi(Mpi.MPICH5, ucx=False, device="ch4:ofi")
    with pytest.raises(LaunchError, match=r"cannot use UCX \(device ch4:ofi\)"):
        exported(mpich, UCX, {})
    assert (say.of_way(mpich).grade, "ch4:ofi" in say.of_way(mpich).words) == (Rating.FAIL, True)
    intel = say.of_way(site_mpi(Mpi.IMPI, ucx=False))
    assert (intel.grade, "uses libfabric" in intel.words) == (Rating.FAIL, True)
    assert "pml/ucx is missing" in say.of_way(site_mpi(Mpi.OPENMPI5, ucx=False)).words
    assert say.of_way(site_mpi(Mpi.OPENMPI5)).grade is Rating.OK


def test_the_names_of_the_transport_are_examined() -> None:
    assert say.of_transport(UCX.plugin, [*say.NAMES, "other"]).grade is Rating.OK
    lacking = say.of_transport(Path("/a b"), say.NAMES[1:])
    assert (lacking.grade, lacking.words) == (
        Rating.WARN,
        "/a b lacks libuct_nearmetal.so: a UCX that looks for this name finds nothing",
    )
    assert lacking.remedy == "ln -s libuct_nearmetal.so.0 '/a b'/libuct_nearmetal.so"


@pytest.mark.parametrize(
    ("loaded", "words", "remedy"),
    [
        (None, "loads no UCX", "ldd"),
        (LoadedUcx(UCX.libraries / "libucp.so.0", (1, 21, 0)), "UCX 1.21.0", "libucx-cu12==1.22.0"),
        (LoadedUcx(Path("/usr/lib/libucp.so.0"), (1, 13, 1)), "does not take the one", "RPATH"),
        (LoadedUcx(Path("/usr/lib/libucp.so.0"), ()), "UCX : /usr/lib", "RPATH"),
    ],
)
def test_another_ucx_than_1_22_is_a_fault(
    loaded: LoadedUcx | None, words: str, remedy: str
) -> None:
    found = say.of_loaded(loaded, UCX)
    assert found.grade is Rating.FAIL
    assert words in found.words
    assert remedy in found.remedy


def test_ucx_1_22_of_any_place_is_right() -> None:
    found = say.of_loaded(LoadedUcx(Path("/hpcx/libucp.so.0"), (1, 22, 7)), UCX)
    assert (found.grade, found.words) == (Rating.OK, "UCX 1.22.7: /hpcx/libucp.so.0")


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ("^posix,sysv,xpmem", Rating.OK),
        ("nearmetal,rc", Rating.OK),
        ("all", Rating.WARN),
        ("^tcp", Rating.WARN),
        ("nearmetal,posix", Rating.WARN),
        ("rc,tcp", Rating.FAIL),
        ("^nearmetal", Rating.FAIL),
    ],
)
def test_the_choice_of_transports_is_examined(text: str, grade: Rating) -> None:
    found = say.of_choice({"UCX_TLS": text})
    assert (found.grade, f"UCX_TLS={text}" in found.words) == (grade, True)
    assert say.of_choice({}).grade is Rating.WARN
