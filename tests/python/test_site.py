# SPDX-License-Identifier: Apache-2.0
"""The variables for a site's launcher in their written forms, and the diagnoses of given facts."""

from __future__ import annotations

import os
import re
import string
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nearmetal.cli.main import main
from nearmetal.core.errors import LaunchError, UsageError
from nearmetal.core.process import LocalRunner
from nearmetal.core.resources import share
from nearmetal.job.mpi import Installation, Mpi, Ucx
from nearmetal.job.site import diagnoses as say
from nearmetal.job.site.container import ENGINES, container_words
from nearmetal.job.site.diagnoses import Rating
from nearmetal.job.site.exported import Exported, Form, exported, for_launcher, written
from nearmetal.job.site.found import FoundMpi, Libfabric, find_mpi
from nearmetal.job.site.machine import MachineFacts, Usable

LIBRARY = Path("/opt/near metal/libnearmetal-fi.so")
YES, NO = Usable(good=True, reason="yes"), Usable(good=False, reason="because")

FACTS = MachineFacts(
    told=True,
    rundir="/dev/shm/nearmetal-7",
    rundir_usable=YES,
    window=YES,
    cma=YES,
    segment=NO,
    tuning=YES,
    tuning_file="",
    shm_free=1 << 30,
    memlock=8 << 20,
    rdma=(),
    shared_devices=(),
    yama=0,
    user_namespaces=YES,
    uid=7,
)


def fabric(version: tuple[int, int], *providers: str, own: bool = True) -> Libfabric:
    path = "/opt/mpi/lib/libfabric.so.1"
    return Libfabric(Path(path), version, own, providers, str(LIBRARY))


def site_mpi(mpi: Mpi, libfabric: Libfabric | None, **more: object) -> FoundMpi:
    made = FoundMpi(
        installation=Installation(mpi, Path("/opt/mpi")),
        title=mpi.title,
        device="",
        launcher=Path("/opt/mpi/bin/mpirun"),
        library=Path("/opt/mpi/lib/libmpi.so.40"),
        fabrics=(),
        libfabric=libfabric,
        ofi=True,
        source="the test",
    )
    return replace(made, **more)  # type: ignore[arg-type]


def test_the_version_of_libfabric_decides_the_form_of_the_path() -> None:
    old, new = fabric((1, 22), own=False), fabric((2, 0))
    for mpi in (Mpi.OPENMPI5, Mpi.OPENMPI4, Mpi.MPICH5):
        path = {
            version: exported(site_mpi(mpi, version), LIBRARY, {}).set["FI_PROVIDER_PATH"]
            for version in (old, new)
        }
        assert path == {old: str(LIBRARY.parent), new: f"+{LIBRARY}"}
    intel = exported(site_mpi(Mpi.IMPI, fabric((1, 21))), LIBRARY, {})
    assert intel.set["FI_PROVIDER_PATH"] == f"/opt/mpi/lib:+{LIBRARY}"
    assert intel.prepend == {"LD_LIBRARY_PATH": "/opt/mpi/lib"}
    assert intel.unset == ("FI_PROVIDER",)


def test_a_colon_in_the_path_of_the_provider_is_refused() -> None:
    for version in ((1, 17), (2, 5)):
        with pytest.raises(LaunchError, match="contains a colon"):
            exported(site_mpi(Mpi.MPICH5, fabric(version)), Path("/opt/a:b/lib.so"), {})


def test_an_mpi_without_libfabric_is_refused_with_its_device() -> None:
    ucx = site_mpi(Mpi.MPICH5, None, ofi=False, device="ch4:ucx")
    with pytest.raises(LaunchError, match=r"cannot use libfabric \(device ch4:ucx\)"):
        exported(ucx, LIBRARY, {})
    diagnosis = say.of_ofi(ucx, "")
    assert (diagnosis.id, diagnosis.grade) == ("mpi-ofi", Rating.FAIL)
    assert "ch4:ucx" in diagnosis.words


def test_nothing_of_the_nodes_of_nearmetal_run_is_exported() -> None:
    for mpi in Mpi:
        names = set(exported(site_mpi(mpi, fabric((2, 5))), LIBRARY, {}).set)
        assert not names & {"LD_LIBRARY_PATH", "OPAL_PREFIX", "I_MPI_PIN", "I_MPI_HYDRA_IFACE"}
        assert not [name for name in names if "ROOT" in name and name != "I_MPI_ROOT"]


def test_open_mpi_forwards_what_is_not_its_own() -> None:
    env = {"OMPI_MCA_mca_base_env_list": "MINE;FI_PROVIDER"}
    own = {"NEARMETAL_RUNDIR": "/dev/shm/job"}
    name = "OMPI_MCA_mca_base_env_list"
    five = exported(site_mpi(Mpi.OPENMPI5, fabric((2, 5))), LIBRARY, env, own=own)
    assert five.set[name] == "MINE;FI_PROVIDER;FI_PROVIDER_PATH;NEARMETAL_RUNDIR"
    assert five.notes == ()
    four = site_mpi(Mpi.OPENMPI4, fabric((1, 17)))
    plain = exported(four, LIBRARY, {}, own=own)
    assert name not in plain.set
    assert "-x FI_PROVIDER -x FI_PROVIDER_PATH -x NEARMETAL_RUNDIR" in plain.notes[0]
    assert exported(four, LIBRARY, {}, listed=True).set[name] == "FI_PROVIDER;FI_PROVIDER_PATH"


def test_open_mpi_4_gets_its_variables_by_option_if_an_option_x_is_there() -> None:
    name = "OMPI_MCA_mca_base_env_list"
    four = site_mpi(Mpi.OPENMPI4, fabric((1, 17)))
    ours = ["-x", "FI_PROVIDER", "-x", "FI_PROVIDER_PATH"]
    # The program's own, or mpirun's: both with all variables.
    for args in (["-n", "4", "./app", "-x"], ["-x", "FOO", "-n", "4", "./app"]):
        found, words = for_launcher(four, LIBRARY, args, {})
        assert (words, found.notes) == ([*ours, *args], ())
        assert name not in found.set
    # It counts for one program of several.
    _, words = for_launcher(four, LIBRARY, ["./a", "-x", ":", "./b"], {})
    assert words == [*ours, "./a", "-x", ":", *ours, "./b"]


def test_a_launcher_without_an_option_x_gets_the_list() -> None:
    name = "OMPI_MCA_mca_base_env_list"
    four = site_mpi(Mpi.OPENMPI4, fabric((1, 17)))
    found, words = for_launcher(four, LIBRARY, ["-n", "4", "./app"], {})
    assert words == ["-n", "4", "./app"]
    assert found.set[name] == "FI_PROVIDER;FI_PROVIDER_PATH"
    # The caller's list excludes mpirun's option, so this -x is the program's.
    found, words = for_launcher(four, LIBRARY, ["./app", "-x"], {name: "MINE"})
    assert (words, found.notes) == (["./app", "-x"], ())
    assert found.set[name] == "MINE;FI_PROVIDER;FI_PROVIDER_PATH"
    listed = ["--mca", "mca_base_env_list", "MINE", "./app", "-x"]
    found, words = for_launcher(four, LIBRARY, listed, {})
    assert words == listed
    assert found.notes[0].endswith("its mca_base_env_list: FI_PROVIDER;FI_PROVIDER_PATH")
    five, words = for_launcher(site_mpi(Mpi.OPENMPI5, fabric((2, 5))), LIBRARY, ["-x", "A"], {})
    assert words == ["-x", "A"]
    assert "FI_PROVIDER" in five.set[name]


def test_the_variables_change_an_environment_once() -> None:
    found = exported(site_mpi(Mpi.IMPI, fabric((1, 21))), LIBRARY, {})
    first = found.applied({"FI_PROVIDER": "tcp", "LD_LIBRARY_PATH": "/a:/b", "HOME": "/h"})
    assert first["LD_LIBRARY_PATH"] == "/opt/mpi/lib:/a:/b"
    assert "FI_PROVIDER" not in first
    assert first["HOME"] == "/h"
    assert found.applied(first) == first
    assert say.of_environment(found, first, "").grade is Rating.OK
    warned = say.of_environment(found, {"FI_PROVIDER": "tcp"}, " impi")
    assert warned.grade is Rating.WARN
    assert "with FI_PROVIDER, which must not be set" in warned.words
    assert warned.remedy == 'eval "$(nearmetal env impi)"'


def evaluated(lines: list[str], env: dict[str, str]) -> dict[str, str]:
    """Return the environment of a shell after it evaluated the lines as a user does."""
    words = ["sh", "-c", 'eval "$1"; exec env -0', "sh", "\n".join(lines)]
    done = subprocess.run(words, env=env, capture_output=True, check=True, timeout=60)
    pairs = done.stdout.decode("utf-8", "surrogateescape").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), max_size=40)


@settings(max_examples=30, deadline=None)
@given(PRINTABLE)
@example("a b'c\"d$(id)`id`\\;|&*?#~")
@example("")
def test_the_shell_reads_back_every_value(text: str) -> None:
    place = "/opt/" + text.replace(":", "")
    found = Exported({"FI_A": text}, {"LD_LIBRARY_PATH": place}, ("GONE",))
    env = {"PATH": os.environ["PATH"], "GONE": "1", "LD_LIBRARY_PATH": "/x y"}
    read = evaluated(written(found, Form.SH), env)
    assert read["FI_A"] == text
    assert read["LD_LIBRARY_PATH"] == f"{place}:/x y"
    assert "GONE" not in read
    del env["LD_LIBRARY_PATH"]
    assert evaluated(written(found, Form.SH), env)["LD_LIBRARY_PATH"] == place


@given(st.text(string.printable.strip() + " ", max_size=40))
def test_lua_gets_a_string_of_one_line(text: str) -> None:
    (line,) = written(Exported({"FI_A": text}, {}, ()), Form.LMOD)
    found = re.fullmatch(r'setenv\("FI_A", "((?:[^"\\]|\\["\\])*)"\)', line)
    assert found
    assert re.sub(r"\\(.)", r"\1", found[1]) == text


def test_the_forms_of_one_mpi() -> None:
    found = Exported({"FI_A": "x y"}, {"LD_LIBRARY_PATH": "/l"}, ("FI_B",))
    assert written(found, Form.LMOD) == [
        'unsetenv("FI_B")',
        'setenv("FI_A", "x y")',
        'prepend_path("LD_LIBRARY_PATH", "/l")',
    ]
    assert written(found, Form.DOCKER) == [
        "# FI_B must not be set",
        "FI_A=x y",
        "LD_LIBRARY_PATH=/l",
    ]


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("text", ["a\nexport EVIL=1", "a\rb", "a\x1b[2J", "a\udcff", "a\u2028b"])
def test_no_form_takes_a_value_that_is_not_one_printable_line(form: Form, text: str) -> None:
    with pytest.raises(UsageError, match=f"FI_A cannot be written for {form.value}"):
        written(Exported({"FI_A": text}, {}, ()), form)


@pytest.mark.parametrize("text", [" a", "a "])
def test_an_env_file_takes_no_space_at_the_ends(text: str) -> None:
    found = Exported({"FI_A": text}, {}, ())
    assert written(found, Form.SH)
    with pytest.raises(UsageError, match="a space at its begin or end"):
        written(found, Form.DOCKER)


def test_what_is_no_mpi_is_refused_with_a_way_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = LocalRunner()
    with pytest.raises(UsageError, match="'lam' names no MPI"):
        find_mpi("lam", runner)
    with pytest.raises(LaunchError, match="holds no MPI"):
        find_mpi(str(tmp_path), runner)
    with pytest.raises(LaunchError, match="does not exist"):
        find_mpi(str(tmp_path / "none"), runner)
    with pytest.raises(LaunchError, match="not the launcher of a known MPI"):
        find_mpi("/bin/true", runner)
    (tmp_path / "libmpi.so.40").write_text("no library")
    with pytest.raises(
        LaunchError, match=r"cannot be loaded: .*(invalid ELF header|file too short)"
    ):
        find_mpi(str(tmp_path / "libmpi.so.40"), runner)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="no mpirun or mpiexec in PATH") as raised:
        find_mpi(None, runner)
    assert "openmpi5" in raised.value.hint


def test_the_diagnoses_of_a_sound_machine_are_good() -> None:
    seen = fabric((2, 5), "tcp", "nearmetal")
    found = [
        say.of_rundir(FACTS),
        say.of_window(FACTS),
        say.of_shm(FACTS),
        say.of_cma(FACTS),
        say.of_segment(FACTS),
        say.of_memlock(FACTS),
        say.of_user_namespaces(FACTS),
        say.of_tuning(FACTS),
        say.of_network(seen, FACTS),
        say.of_meeting(FACTS, seen),
        say.of_libfabric(seen),
        say.of_loading(seen, "", LIBRARY),
    ]
    assert {one.grade for one in found} == {Rating.OK}
    assert not [one.remedy for one in found if one.remedy]


WORSE = (
    ("rundir", say.of_rundir, {"rundir_usable": NO}, Rating.FAIL),
    ("window", say.of_window, {"window": NO}, Rating.FAIL),
    ("shm", say.of_shm, {"shm_free": 1 << 20}, Rating.WARN),
    ("shm", say.of_shm, {"shm_free": None}, Rating.FAIL),
    ("cma", say.of_cma, {"cma": NO, "yama": 2}, Rating.WARN),
    ("segment", say.of_segment, {"shared_devices": ("/dev/dax0.0",)}, Rating.WARN),
    ("memlock", say.of_memlock, {"rdma": ("mlx5_0",)}, Rating.WARN),
    ("user-namespaces", say.of_user_namespaces, {"user_namespaces": NO}, Rating.WARN),
    ("tuning", say.of_tuning, {"tuning": NO, "tuning_file": "/etc/t"}, Rating.WARN),
)


@pytest.mark.parametrize(("name", "check", "change", "grade"), WORSE)
def test_each_defect_has_its_grade_its_reason_and_a_fix(
    name: str, check: object, change: dict[str, object], grade: Rating
) -> None:
    assert callable(check)
    found = check(replace(FACTS, **change))  # type: ignore[arg-type]
    assert (found.id, found.grade) == (name, grade)
    assert found.remedy
    if "because" in str(change):
        assert "because" in found.words


def test_locked_memory_is_counted_in_peers() -> None:
    facts = replace(FACTS, rdma=("mlx5_0",), memlock=(9 << 20) + 5 * (2 << 20))
    assert "enough for 5 peers" in say.of_memlock(facts).words
    assert say.of_memlock(replace(facts, memlock=None)).grade is Rating.OK


def test_the_network_under_the_provider_is_judged() -> None:
    assert say.of_network(fabric((2, 5), "nearmetal"), FACTS).grade is Rating.FAIL
    over = replace(FACTS, rdma=("mlx5_0",))
    assert say.of_network(fabric((2, 5), "tcp"), over).grade is Rating.WARN
    good = say.of_network(fabric((2, 5), "tcp", "verbs;ofi_rxm"), over)
    assert (good.grade, "verbs;ofi_rxm" in good.words) == (Rating.OK, True)


def test_a_libfabric_that_does_not_fit_is_reported() -> None:
    assert say.of_libfabric(None).grade is Rating.FAIL
    assert say.of_libfabric(fabric((1, 16))).grade is Rating.FAIL
    assert say.of_libfabric(fabric((2, 6))).grade is Rating.WARN
    unloaded = replace(fabric((2, 5), "tcp"), nearmetal="")
    assert "it said so" in say.of_loading(unloaded, "it said so", LIBRARY).words
    assert say.of_loading(fabric((2, 5), "tcp"), "", LIBRARY).grade is Rating.FAIL
    other = replace(fabric((2, 5), "nearmetal"), nearmetal="/an other/libnearmetal-fi.so")
    found = say.of_loading(other, "", LIBRARY)
    assert found.grade is Rating.WARN
    assert found.remedy == "export NEARMETAL_PROVIDER_LIB='/an other/libnearmetal-fi.so'"


def test_the_fix_for_an_mpi_without_launcher_is_one_word_of_a_shell() -> None:
    place = Installation(Mpi.MPICH5, Path("/opt/my mpi; id"))
    found = say.of_mpi(site_mpi(Mpi.MPICH5, None, installation=place, launcher=None))
    assert found.grade is Rating.WARN
    assert found.remedy == "nearmetal doctor '/opt/my mpi; id'"


@pytest.fixture
def meeting() -> Iterator[str]:
    name = f"/dev/shm/nearmetal-test-{os.getpid()}"
    yield name
    Path(name).rmdir()


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    library = tmp_path / "libnearmetal-fi.so"
    library.touch()
    monkeypatch.setenv("NEARMETAL_PROVIDER_LIB", str(library))
    return library


def test_charliecloud_mounts_the_directory_of_the_file_itself(tmp_path: Path) -> None:
    """In a guest, where the provider of a package is a link to another directory."""
    (tmp_path / "links").mkdir()
    (tmp_path / "library.so").touch()
    facts = 'provider=$1 tools= run=/ values="P=+/usr/lib/nearmetal/library.so"'
    words = f'{facts}; . "$2"; container_options --engine=charliecloud'

    def said(link: str, target: str) -> tuple[str, str]:
        (tmp_path / "links" / link).symlink_to(target)
        script = share("guest", "unit", "container.sh")
        argv = ["sh", "-c", words, "sh", str(tmp_path / "links" / link), str(script)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
        return done.stdout, done.stderr

    options = f"--bind={tmp_path}:/mnt\n--set-env=P=+/mnt/library.so\n"
    assert said("library.so", "../library.so") == (options, "")
    out, error = said("other.so", "../library.so")
    assert (out, "a link to another name" in error) == ("", True)
    out, error = said("nothing.so", "../nothing.so")
    assert (out, "no such file" in error) == ("", True)


def test_a_guest_without_its_variables_gives_no_options(tmp_path: Path) -> None:
    unit = share("guest", "unit")
    script = tmp_path / "nearmetal-guest"
    text = (unit / "nearmetal-guest").read_text()
    places = {"lib=/usr/lib/nearmetal": f"lib={unit}", "etc=/etc/nearmetal": f"etc={tmp_path}"}
    for fixed, ours in places.items():
        assert fixed in text
        text = text.replace(fixed, ours)
    script.write_text(text)
    done = subprocess.run(
        ["sh", script, "container"], capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{tmp_path}/environment" in done.stderr
    assert "configure" in done.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_gets_provider_variables_and_meeting_place(
    engine: str, meeting: str, provider: Path
) -> None:
    words = container_words(engine, "openmpi5", Path(meeting), LocalRunner())
    assert Path(meeting).stat().st_mode & 0o777 == 0o700
    inside = "/usr/lib/nearmetal/libnearmetal-fi.so"
    variable, place = "--env", f"--volume={provider}:{inside}:ro"
    if engine == "apptainer":
        place = f"--bind={provider}:{inside}:ro"
    elif engine == "charliecloud":
        variable, place = "--set-env", f"--bind={provider.parent}:/mnt"
        inside = "/mnt/libnearmetal-fi.so"
    assert place in words
    assert f"{variable}=FI_PROVIDER_PATH=+{inside}" in words
    assert f"{variable}=OMPI_MCA_pml=cm" in words
    assert words[-1] == f"{variable}=NEARMETAL_RUNDIR={meeting}"
    # Engines that hide /dev need it as a mount; no shell may split a word of the answer.
    assert (f"--volume={meeting}:{meeting}" in words) == (engine in ("podman", "docker"))
    assert words == " ".join(words).split()


@pytest.mark.parametrize("engine", ENGINES)
def test_over_ucx_a_container_gets_ucx_and_the_transport(engine: str) -> None:
    ucx = Ucx(Path("/opt/ucx/lib"), Path("/opt/transport"))
    words = container_words(engine, "openmpi4", None, LocalRunner(), ucx)
    variable, place, rights = "--env", "--volume", ":ro"
    libraries, plugin = "/usr/lib/nearmetal/libucx", "/usr/lib/nearmetal/ucx"
    if engine == "apptainer":
        place = "--bind"
    elif engine == "charliecloud":
        variable, place, rights, libraries, plugin = "--set-env", "--bind", "", "/srv", "/mnt"
    assert f"{place}=/opt/ucx/lib:{libraries}{rights}" in words
    assert f"{place}=/opt/transport:{plugin}{rights}" in words
    assert f"{variable}=LD_LIBRARY_PATH={libraries}" in words
    assert f"{variable}=UCX_PLUGIN_PATH={plugin}" in words
    assert f"{variable}=OMPI_MCA_pml=ucx" in words
    assert not any("FI_PROVIDER" in word or "libnearmetal-fi" in word for word in words)
    bad = Ucx(Path("/opt/my ucx"), ucx.plugin)
    with pytest.raises(LaunchError, match="a shell splits other paths"):
        container_words(engine, "openmpi4", None, LocalRunner(), bad)


def test_the_mpi_of_the_image_decides_about_the_variables(provider: Path) -> None:
    def value(mpi: str) -> str:
        words = container_words("podman", mpi, None, LocalRunner())
        return next(w for w in words if w.startswith("--env=FI_PROVIDER_PATH="))

    assert provider.is_file()
    assert value("openmpi4") == "--env=FI_PROVIDER_PATH=/usr/lib/nearmetal"
    assert value("mpich5").endswith("=+/usr/lib/nearmetal/libnearmetal-fi.so")
    for mpi in ("impi", "lam"):
        with pytest.raises(UsageError, match=f"--mpi {mpi}: not known in a container"):
            value(mpi)


def test_a_host_refuses_what_a_shell_would_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for directory in ("/tmp/job", "/dev/shm/../etc", "/dev/shm/a b", "/dev/shm/"):
        with pytest.raises(LaunchError):
            container_words("podman", "openmpi5", Path(directory), LocalRunner())
    library = tmp_path / "a b.so"
    library.touch()
    monkeypatch.setenv("NEARMETAL_PROVIDER_LIB", str(library))
    with pytest.raises(LaunchError, match="a shell splits other paths"):
        container_words("podman", "openmpi5", None, LocalRunner())
    with pytest.raises(LaunchError, match="engine lxc is not known"):
        container_words("lxc", "openmpi5", None, LocalRunner())


@pytest.mark.parametrize("what", ["link", "open", pytest.param("foreign", marks=pytest.mark.root)])
def test_a_meeting_place_that_another_may_have_made_is_refused(
    what: str, tmp_path: Path, provider: Path
) -> None:
    assert provider.exists()
    place = Path(f"/dev/shm/nearmetal-test-{os.getpid()}-{what}")
    try:
        if what == "link":
            place.symlink_to(tmp_path)
        else:
            place.mkdir(mode=0o700)
            place.chmod(0o777 if what == "open" else 0o700)
            os.chown(place, 1234 if what == "foreign" else -1, -1)
        with pytest.raises(LaunchError, match="not a directory to which only user"):
            container_words("podman", "openmpi5", place, LocalRunner())
    finally:
        if place.is_symlink():
            place.unlink()
        else:
            place.rmdir()


def test_the_verb_prints_the_options(
    meeting: str, provider: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["container", "--engine", "docker", meeting]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"--volume={provider}:/usr/lib/nearmetal/libnearmetal-fi.so:ro" in lines
    assert lines[-1] == f"--env=NEARMETAL_RUNDIR={meeting}"
