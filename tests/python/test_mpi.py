# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.core.errors import LaunchError, UsageError
from nearmetal.job.mpi import (
    Family,
    Installation,
    MapBy,
    Mpi,
    Placement,
    Provider,
    Request,
    find_installations,
    launcher_argv,
    pick,
    settings_for,
)
from nearmetal.job.mpi.installed import SearchPath, linked_family
from nearmetal.job.mpi.launcher import place

LIBRARY = Path("/opt/libnearmetal-fi.so")
JOB_PROVIDERS = Path("/run/nearmetal/job.providers")
PREFIX = Path("/opt/mpi")


def near(mpi: Mpi, prefix: Path = PREFIX, *, crowded: bool = False) -> dict[str, str]:
    request = Request(Provider.NEARMETAL, LIBRARY, JOB_PROVIDERS, ("net",), crowded)
    made = settings_for(Installation(mpi, prefix), request)
    pairs = zip(made.options, made.options[1:], made.options[2:], strict=False)
    options = {key: value for mca, key, value in pairs if mca == "--mca"}
    return made.defaults | made.env | options


def test_open_mpi_is_told_cm_over_ofi_over_nearmetal() -> None:
    for mpi, include in (
        (Mpi.OPENMPI5, "opal_common_ofi_provider_include"),
        (Mpi.OPENMPI4, "mtl_ofi_provider_include"),
    ):
        told = near(mpi)
        assert (told["pml"], told["mtl"], told[include]) == ("cm", "ofi", "nearmetal")
        assert told["FI_PROVIDER"].split(",")[0] == "nearmetal"
        assert told["OMPI_ALLOW_RUN_AS_ROOT"] == told["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"


def test_the_provider_path_takes_the_form_each_libfabric_knows() -> None:
    assert near(Mpi.OPENMPI5)["FI_PROVIDER_PATH"] == f"+{LIBRARY}"
    assert near(Mpi.MPICH5)["FI_PROVIDER_PATH"] == f"+{LIBRARY}"
    assert near(Mpi.OPENMPI4)["FI_PROVIDER_PATH"] == str(JOB_PROVIDERS)
    assert near(Mpi.IMPI)["FI_PROVIDER_PATH"] == str(JOB_PROVIDERS)


def test_a_provider_directory_holds_ours_and_intel_s_own(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    for name in ("libtcp-fi.so", "librxm-fi.so", "libmpi.so"):
        (tmp_path / "lib" / name).touch()
    # The nodes have it at another place, which is not there on this machine.
    names = Installation(Mpi.IMPI, tmp_path).provider_names
    request = Request(Provider.NEARMETAL, LIBRARY, JOB_PROVIDERS, provider_names=names)
    made = settings_for(Installation(Mpi.IMPI, PREFIX), request)
    own = [PREFIX / "lib" / name for name in ("librxm-fi.so", "libtcp-fi.so")]
    assert made.providers == (LIBRARY, *own)
    assert settings_for(Installation(Mpi.MPICH5, PREFIX), request).providers == ()


def test_the_interface_of_intel_s_launcher_is_named_where_it_is_known() -> None:
    def named(interface: str) -> str | None:
        request = Request(Provider.NEARMETAL, LIBRARY, interface=interface)
        return settings_for(Installation(Mpi.IMPI, PREFIX), request).env.get("I_MPI_HYDRA_IFACE")

    assert (named("eth0"), named("")) == ("eth0", None)


def test_nodes_that_see_the_providers_get_no_links(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libtcp-fi.so").touch()
    request = Request(Provider.NEARMETAL, LIBRARY)
    impi = settings_for(Installation(Mpi.IMPI, tmp_path), request)
    assert impi.env["FI_PROVIDER_PATH"] == f"{tmp_path / 'lib'}:+{LIBRARY}"
    open_mpi = settings_for(Installation(Mpi.OPENMPI4, PREFIX), request)
    assert open_mpi.env["FI_PROVIDER_PATH"] == str(LIBRARY.parent)
    assert impi.providers == open_mpi.providers == ()
    with pytest.raises(LaunchError, match="contains a colon"):
        settings_for(
            Installation(Mpi.OPENMPI4, PREFIX), Request(Provider.NEARMETAL, Path("/a:b/x-fi.so"))
        )


def test_open_mpi_5_is_told_when_its_nodes_are_one_host() -> None:
    for mpi, expected in ((Mpi.OPENMPI5, "^han"), (Mpi.OPENMPI4, None)):
        for one_host in (True, False):
            request = Request(Provider.NEARMETAL, LIBRARY, JOB_PROVIDERS, one_host=one_host)
            env = settings_for(Installation(mpi, PREFIX), request).defaults
            assert env.get("OMPI_MCA_coll") == (expected if one_host else None)
    stock = Request(Provider.STOCK, one_host=True)
    assert not settings_for(Installation(Mpi.OPENMPI5, PREFIX), stock).defaults


def test_mpich_hands_all_traffic_to_the_netmod() -> None:
    told = near(Mpi.MPICH5)
    assert (told["MPIR_CVAR_CH4_NETMOD"], told["MPIR_CVAR_NOLOCAL"]) == ("ofi", "1")


def test_intel_mpi_gets_no_fi_provider() -> None:
    told = near(Mpi.IMPI)
    assert told["I_MPI_OFI_PROVIDER"] == "nearmetal"
    assert "FI_PROVIDER" not in told
    assert told["I_MPI_ROOT"] == str(PREFIX)


def test_channels_and_libraries_are_set() -> None:
    told = near(Mpi.MPICH5)
    assert told["NEARMETAL_CHANNELS"] == "net"
    assert told["LD_LIBRARY_PATH"] == str(PREFIX / "lib")
    assert "LD_LIBRARY_PATH" not in near(Mpi.OPENMPI4, Path("/usr"))


def test_ranks_that_share_cores_yield() -> None:
    assert near(Mpi.OPENMPI5, crowded=True)["mpi_yield_when_idle"] == "1"
    crowd = near(Mpi.IMPI, crowded=True)
    assert (crowd["I_MPI_THREAD_YIELD"], crowd["I_MPI_COLL_INTRANODE"]) == ("3", "pt2pt")
    sizes = {"NEARMETAL_SHM_EAGER_MAX": "65536", "NEARMETAL_POOL_SIZE": "1048576"}
    for mpi in Mpi:
        assert sizes.items() <= near(mpi, crowded=True).items()
        assert not sizes.keys() & near(mpi).keys()
    assert "mpi_yield_when_idle" not in near(Mpi.OPENMPI5)
    assert "I_MPI_COLL_INTRANODE" not in near(Mpi.IMPI)


def test_intel_mpi_over_its_own_paths_keeps_its_own_collectives() -> None:
    request = Request(Provider.STOCK, channels=(), crowded=True)
    made = settings_for(Installation(Mpi.IMPI, PREFIX), request)
    assert made.defaults == {"I_MPI_THREAD_YIELD": "3"}


@pytest.mark.parametrize("mpi", Mpi)
def test_stock_has_no_word_of_nearmetal(mpi: Mpi) -> None:
    made = settings_for(Installation(mpi, PREFIX), Request(Provider.STOCK, channels=("net",)))
    assert "nearmetal" not in " ".join((*made.env, *made.env.values(), *made.options))
    assert "tcp" in " ".join((*made.env.values(), *made.options))


NODES = (("a", 2), ("b", 2))


@pytest.mark.parametrize(
    ("ranks", "map_by", "expected"),
    [
        (None, MapBy.SLOT, (("a", 2), ("b", 2))),
        (3, MapBy.SLOT, (("a", 2), ("b", 1))),
        (1, MapBy.SLOT, (("a", 1),)),
        (2, MapBy.NODE, (("a", 1), ("b", 1))),
        (3, MapBy.NODE, (("a", 2), ("b", 1))),
    ],
)
def test_placement(ranks: int | None, map_by: MapBy, expected: tuple[tuple[str, int], ...]) -> None:
    assert place(NODES, ranks, map_by).ranks == expected


@given(
    st.lists(st.integers(min_value=1, max_value=5), min_size=1, max_size=5),
    st.integers(min_value=1, max_value=30),
    st.sampled_from(MapBy),
)
def test_placement_keeps_within_the_slots(slots: list[int], wanted: int, map_by: MapBy) -> None:
    nodes = [(f"n{i}", count) for i, count in enumerate(slots)]
    if wanted > sum(slots):
        with pytest.raises(UsageError, match=f"pass -n {sum(slots)}|more than the"):
            place(nodes, wanted, map_by)
        return
    placed = place(nodes, wanted, map_by)
    assert placed.total == wanted
    assert all(0 < count <= dict(nodes)[name] for name, count in placed.ranks)


def test_more_ranks_than_slots_says_what_to_pass() -> None:
    with pytest.raises(UsageError, match="5 ranks are more than the 4 slots") as caught:
        place(NODES, 5, MapBy.SLOT)
    assert "pass -n 4" in caught.value.hint
    with pytest.raises(UsageError, match="-n 0"):
        place(NODES, 0, MapBy.SLOT)


def command(mpi: Mpi, ranks: tuple[tuple[str, int], ...], map_by: MapBy = MapBy.SLOT) -> str:
    installation = Installation(mpi, PREFIX)
    return " ".join(launcher_argv(installation, Placement(ranks, map_by), "/agent", (), ("./p",)))


def test_open_mpi_s_launcher_goes_through_the_agent_and_binds_nothing() -> None:
    five = command(Mpi.OPENMPI5, NODES, MapBy.NODE)
    assert "--prtemca plm_ssh_agent /agent" in five
    assert "--bind-to none --host a:2,b:2 --map-by node" in five
    assert five.endswith("-n 4 /bin/sh /agent --rank ./p")
    assert "--mca plm_rsh_agent /agent" in command(Mpi.OPENMPI4, NODES)


@pytest.mark.parametrize(
    ("mpi", "ranks", "map_by", "expected"),
    [
        (Mpi.MPICH5, NODES, MapBy.SLOT, "-hosts a,b -ppn 2 -n 4 /bin/sh /agent --rank ./p"),
        (Mpi.MPICH5, NODES, MapBy.NODE, "-hosts a,b -ppn 1 -n 4 /bin/sh /agent --rank ./p"),
        (
            Mpi.MPICH5,
            (("a", 2), ("b", 1)),
            MapBy.SLOT,
            "-hosts a:2,b:1 -n 3 /bin/sh /agent --rank ./p",
        ),
        (
            Mpi.IMPI,
            (("a", 2), ("b", 1)),
            MapBy.NODE,
            "-hosts a,b -ppn 1 -n 3 /bin/sh /agent --rank ./p",
        ),
        (
            Mpi.IMPI,
            (("a", 2), ("b", 1)),
            MapBy.SLOT,
            "-host a -n 2 /bin/sh /agent --rank ./p : -host b -n 1 /bin/sh /agent --rank ./p",
        ),
        (
            Mpi.MPICH5,
            (("a", 1), ("b", 3)),
            MapBy.NODE,
            " : ".join(f"-host {name} -n 1 /bin/sh /agent --rank ./p" for name in "abbb"),
        ),
    ],
)
def test_hydra_is_told_where_every_rank_goes(
    mpi: Mpi, ranks: tuple[tuple[str, int], ...], map_by: MapBy, expected: str
) -> None:
    line = command(mpi, ranks, map_by)
    word = "bootstrap" if mpi is Mpi.IMPI else "launcher"
    assert line == f"/opt/mpi/bin/mpiexec.hydra -{word} ssh -{word}-exec /agent {expected}"


def install(root: Path, mpi: Mpi) -> None:
    launcher = Installation(mpi, root / mpi.value).launcher
    launcher.parent.mkdir(parents=True)
    launcher.write_text("#!/bin/sh\n")
    launcher.chmod(0o755)


def program(path: Path, family: Family) -> Path:
    path.write_bytes(b"\x7fELF\0" + family.value.encode() + b"\0")
    return path


@pytest.fixture
def mpis(tmp_path: Path) -> SearchPath:
    """Only what a test installs is installed."""
    return SearchPath((tmp_path,), None)


def test_the_named_mpi_is_taken(mpis: SearchPath) -> None:
    install(mpis.roots[0], Mpi.MPICH5)
    install(mpis.roots[0], Mpi.OPENMPI5)
    assert set(find_installations(mpis)) == {Mpi.MPICH5, Mpi.OPENMPI5}
    assert pick("mpich5", places=mpis).prefix == mpis.roots[0] / "mpich5"
    assert pick(None, places=mpis).mpi is Mpi.OPENMPI5


def test_without_a_name_the_program_decides(mpis: SearchPath, tmp_path: Path) -> None:
    install(mpis.roots[0], Mpi.MPICH5)
    install(mpis.roots[0], Mpi.OPENMPI5)
    assert pick(None, program(tmp_path / "m", Family.MPICH), mpis).mpi is Mpi.MPICH5
    assert pick(None, program(tmp_path / "o", Family.OPENMPI), mpis).mpi is Mpi.OPENMPI5


def test_a_program_of_another_mpi_is_refused(mpis: SearchPath, tmp_path: Path) -> None:
    install(mpis.roots[0], Mpi.MPICH5)
    install(mpis.roots[0], Mpi.OPENMPI5)
    with pytest.raises(
        LaunchError, match=r"linked to libmpi\.so\.40, which is not MPICH"
    ) as caught:
        pick("mpich5", program(tmp_path / "o", Family.OPENMPI), mpis)
    assert "openmpi5" in caught.value.hint


def test_an_mpi_that_is_not_installed(mpis: SearchPath) -> None:
    install(mpis.roots[0], Mpi.MPICH5)
    with pytest.raises(
        LaunchError, match=f"not installed: looked in {mpis.roots[0]}/impi"
    ) as caught:
        pick("impi", places=mpis)
    assert "installed: mpich5; use --mpi with one of these, or install Intel" in caught.value.hint
    with pytest.raises(UsageError, match="unknown MPI 'mvapich'") as unknown:
        pick("mvapich", places=mpis)
    assert "openmpi4" in unknown.value.hint


def test_a_wheel_in_the_environment_of_nearmetal_is_found(tmp_path: Path) -> None:
    places = SearchPath((), None, tmp_path)
    launcher = Installation(Mpi.MPICH5, tmp_path).launcher
    launcher.parent.mkdir()
    launcher.touch(mode=0o755)
    assert find_installations(places) == {}
    (tmp_path / "bin/mpichversion").touch()
    assert find_installations(places) == {Mpi.MPICH5: Installation(Mpi.MPICH5, tmp_path)}


@pytest.mark.parametrize(("release", "mpi"), [("30.4", Mpi.OPENMPI4), ("40.7", Mpi.OPENMPI5)])
def test_the_open_mpi_of_debian_is_known_by_its_library(
    tmp_path: Path, release: str, mpi: Mpi
) -> None:
    library = tmp_path / f"lib/x86_64-linux-gnu/libmpi.so.40.{release}"
    library.parent.mkdir(parents=True)
    library.touch()
    for name in ("mpirun", "mpirun.openmpi"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).touch(mode=0o755)
    assert list(find_installations(SearchPath((), tmp_path))) == [mpi]


def test_no_mpi_at_all(mpis: SearchPath) -> None:
    with pytest.raises(LaunchError, match=r"no MPI .* is installed \(here: none\)"):
        pick(None, places=mpis)


def test_debian_s_open_mpi_4_is_found_by_its_library(tmp_path: Path) -> None:
    places = SearchPath((), tmp_path)
    launcher = Installation(Mpi.OPENMPI4, tmp_path).launcher
    launcher.parent.mkdir(parents=True)
    launcher.touch(mode=0o755)
    library = tmp_path / "lib" / "some-linux-gnu"
    library.mkdir(parents=True)
    (library / "libmpi.so.40.40.7").touch()
    assert find_installations(places) == {}
    (library / "libmpi.so.40.30.4").touch()
    assert find_installations(places)[Mpi.OPENMPI4].library_directory == tmp_path / "lib"


def test_scripts_and_plain_programs_fit_every_mpi(tmp_path: Path) -> None:
    script = tmp_path / "s"
    script.write_text("#!/bin/sh\n# libmpi.so.40\n")
    assert linked_family(script) is None
    assert linked_family(tmp_path / "none") is None
