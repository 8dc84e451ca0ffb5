# SPDX-License-Identifier: Apache-2.0
"""The packages that `make packages` has built: their content, and bare Debian roots that use them."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = Path(os.environ.get("PACKAGES", ROOT / "build/packages"))
CACHE = ROOT / "build/bare-roots"
HERE = Path(__file__).parent
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
IN_ROOT = "python3-venv,ca-certificates,iproute2,man-db"
"""A user of the wheel, who is not root, needs these; packages of Debian bring what they need."""
SUITES = ("bookworm", "trixie")
UCX_NAMES = [f"libuct_nearmetal{end}" for end in (".so", ".so.0", ".so.0.0.0")]
"""Of the transport for UCX, which looks for any of them."""

pytestmark = [pytest.mark.system, pytest.mark.full, pytest.mark.timeout(1800)]

if not list(PACKAGES.glob("*.whl")):
    pytest.skip("no packages: `make packages` builds them", allow_module_level=True)


def only(pattern: str) -> Path:
    (found,) = PACKAGES.glob(pattern)
    return found


def output(*argv: str | Path) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300).stdout


def mirror() -> str:
    """The archive that this machine's own packages come from."""
    form = "$(RELEASE) $(COMPONENT) $(REPO_URI)"
    lines = output("apt-get", "indextargets", "--format", form, "Created-By: Packages").splitlines()
    found = [line.split()[2] for line in lines if line.startswith("bookworm main ")]
    if not found:
        pytest.skip("no Debian 12 mirror in the sources of this machine")
    return found[0]


def bare_root(suite: str) -> Path:
    """A root file system of Debian as a tar file; made once."""
    tar = CACHE / f"{suite}.tar"
    if not tar.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        fresh = CACHE / f"{suite}.new.tar"
        source = f"deb [signed-by={KEYRING}] {mirror()} {suite} main"
        argv: list[str | Path] = [
            "mmdebstrap",
            "--variant=minbase",
            f"--include={IN_ROOT}",
            suite,
            fresh,
            source,
        ]
        subprocess.run(argv, check=True, capture_output=True, timeout=1500)
        fresh.rename(tar)
    return tar


def in_bare_root(suite: str, script: str, tmp_path: Path) -> list[str]:
    """Run a script of this folder in a bare root; return what passed."""
    given = tmp_path / "given"
    given.mkdir()
    pages = [ROOT / "docs" / name for name in ("howto-install.md", "tutorial-containers.md")]
    for path in (*PACKAGES.iterdir(), *HERE.glob("*.sh"), HERE / "follow.py", *pages):
        shutil.copy(path, given)
    done = subprocess.run(
        [HERE / "root.sh", bare_root(suite), given, f"/given/{script}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout
    return [
        line.removeprefix("passed: ") for line in done.stdout.splitlines() if "passed: " in line
    ]


@pytest.mark.root
@pytest.mark.parametrize("suite", SUITES)
def test_debian_packages_on_a_bare_root(suite: str, tmp_path: Path) -> None:
    passed = in_bare_root(suite, "bare_debian.sh", tmp_path)
    assert passed == [
        "install",
        "libfabric finds the provider by itself",
        "manual",
        "a page for each verb",
        "guest unit",
        "demo with Debian's Open MPI",
        "the tutorial as it stands",
        "a job of PyPI's MPICH across two nodes",
        "completion of a spec and of a cluster",
        "schemas and metrics",
        "purge leaves nothing",
    ]


@pytest.mark.root
@pytest.mark.parametrize("suite", SUITES)
def test_the_packages_own_test_by_autopkgtest(suite: str, tmp_path: Path) -> None:
    assert in_bare_root(suite, "bare_autopkgtest.sh", tmp_path) == ["mpi-job"]


@pytest.mark.root
def test_rpms_are_installed_and_erased(tmp_path: Path) -> None:
    # The only Debian that has the Python 3.11 of the RPMs.
    passed = in_bare_root("bookworm", "bare_rpm.sh", tmp_path)
    assert passed == [
        "install",
        "the directory of RHEL's libfabric has the provider",
        "tools, guest unit, manual",
        "demo",
        "use changes no file",
        "erase leaves nothing",
    ]


@pytest.mark.root
@pytest.mark.parametrize("suite", SUITES)
def test_the_wheel_without_root(suite: str, tmp_path: Path) -> None:
    passed = in_bare_root(suite, "bare_wheel.sh", tmp_path)
    assert passed == [
        "install",
        "tools",
        "manual",
        "demo with PyPI's MPICH",
        "a job of PyPI's MPICH across two nodes",
        "completion of a cluster",
        "the tutorial as it stands",
        "tune",
        "parts of an image",
        "a missing extra is named",
        "extras: metrics, study, the API of notebooks",
        "uninstall leaves nothing",
    ]


def test_the_wheel_has_every_file_of_the_package() -> None:
    listed = output("git", "-C", ROOT, "ls-files", "nearmetal").split()
    with zipfile.ZipFile(only("*.whl")) as wheel:
        names = set(wheel.namelist())
    assert [name for name in listed if name not in names] == []
    built = {name.rpartition("/")[2] for name in names if "/share/built/" in name}
    libraries = {"libnearmetal-fi.so", "libnearmetal-heap.so", *UCX_NAMES}
    assert built >= {*libraries, "nearmetal-info", "nearmetal-segment", "limits"}


def newest_glibc(path: Path) -> tuple[int, ...]:
    """The newest release of glibc whose symbols a program or library needs."""
    versions = [
        word.partition("GLIBC_")[2].strip("()").split(".")
        for word in output("objdump", "-T", path).split()
        if "GLIBC_2" in word
    ]
    return max(tuple(map(int, version)) for version in versions)


def test_nothing_in_the_wheel_needs_a_new_glibc(tmp_path: Path) -> None:
    with zipfile.ZipFile(only("*.whl")) as wheel:
        wheel.extractall(tmp_path)
    for path in (tmp_path / "nearmetal/share/built").rglob("*"):
        assert path.is_dir() or newest_glibc(path) <= (2, 28), path


def test_nothing_in_the_rpms_needs_a_newer_glibc_than_that_of_rhel_9(tmp_path: Path) -> None:
    for package in PACKAGES.glob("*.rpm"):
        with package.open("rb") as given:
            archive = subprocess.run(
                ["rpm2archive", "-"], stdin=given, capture_output=True, check=True, timeout=60
            )
        subprocess.run(["tar", "-C", tmp_path, "-xz"], input=archive.stdout, check=True, timeout=60)
    tools = [tmp_path / "usr/bin" / name for name in ("nearmetal-info", "nearmetal-segment")]
    built = (tmp_path / "usr/lib64/nearmetal").rglob("*")
    programs = [*tools, *(path for path in built if not path.is_dir())]
    assert len(programs) >= 17
    assert [path.name for path in programs if newest_glibc(path) > (2, 34)] == []


def test_the_debian_package_has_the_transport_and_needs_no_ucx() -> None:
    package = only("libnearmetal-fi_*.deb")
    listed = {line.split()[5] for line in output("dpkg", "-c", package).splitlines()}
    directory = "./usr/lib/x86_64-linux-gnu/nearmetal/ucx"
    assert {f"{directory}/{name}" for name in UCX_NAMES} <= listed
    assert "ucx" not in output("dpkg", "-f", package, "Depends")


def test_lintian_finds_no_error() -> None:
    argv: list[str | Path] = [
        "lintian",
        "--allow-root",
        "--fail-on",
        "error",
        *PACKAGES.glob("*.deb"),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout


def test_an_upgrade_of_computed_continues_its_service_and_a_removal_ends_it(tmp_path: Path) -> None:
    output("dpkg-deb", "--control", only("nearmetal-computed_*.deb"), tmp_path)
    before, after = ((tmp_path / name).read_text() for name in ("prerm", "postinst"))
    assert not (tmp_path / "preinst").exists()
    assert "deb-systemd-invoke stop 'nearmetal-computed.service'" in before
    assert "_dh_action=restart" in after
    assert "deb-systemd-invoke $_dh_action 'nearmetal-computed.service'" in after


def test_rpms_have_the_paths_of_rhel() -> None:
    library = output("rpm", "-qlp", only("libnearmetal-fi-*.rpm")).split()
    assert "/usr/lib64/libfabric/libnearmetal-fi.so" in library
    assert "/usr/lib64/nearmetal/libnearmetal-heap.so" in library
    assert {f"/usr/lib64/nearmetal/ucx/{name}" for name in UCX_NAMES} <= set(library)
    assert "libuct" not in output("rpm", "-qRp", only("libnearmetal-fi-*.rpm"))
    needs = output("rpm", "-qRp", only("nearmetal-[0-9]*.rpm")).split("\n")
    assert "python3.11" in needs
    listed = output("rpm", "-qlp", only("nearmetal-[0-9]*.rpm")).split()
    pages = {Path(path).name.partition(".")[0] for path in listed if "/man/man" in path}
    written = {path.stem for path in (ROOT / "nearmetal/share/man").glob("nearmetal*.md")}
    assert written - pages == {f"nearmetal-{name}" for name in ("computed", "info", "segment")}
    assert not [need for need in needs if need.startswith("libmpi")]
    scripts = output("rpm", "-qp", "--scripts", only("nearmetal-guest-*.rpm"))
    _, after = scripts.split("postuninstall scriptlet (using /bin/sh):")
    assert "rm -f /etc/profile.d/nearmetal.sh" in after


def recipe(text: str) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """The digest of each version of a recipe for Spack, and what it depends on to run."""
    versions, needs = {}, set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        options = {one.arg: ast.literal_eval(one.value) for one in node.keywords if one.arg}
        if node.func.id == "version":
            versions[ast.literal_eval(node.args[0])] = options["sha256"]
        if node.func.id == "depends_on" and "run" in options.get("type", ()):
            name, _, version = str(ast.literal_eval(node.args[0])).partition("@")
            needs.add((name, version))
    return versions, needs


def test_the_recipes_for_spack_name_the_source_beside_them_and_every_package(
    tmp_path: Path,
) -> None:
    output("tar", "-C", tmp_path, "-xzf", only("nearmetal-spack-*.tar.gz"))
    folder = tmp_path / "nearmetal-spack"
    (source,) = folder.glob("nearmetal-*.tar.gz")
    version = source.name.removeprefix("nearmetal-").removesuffix(".tar.gz")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert source.read_bytes() == only(source.name).read_bytes()
    recipes = {
        path.parent.name: recipe(path.read_text())
        for path in sorted(folder.glob("packages/*/package.py"))
    }
    for name in ("nearmetal", "libnearmetal-fi"):
        assert recipes[name][0] == {version: digest}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {("python", "3.11:"), ("iproute2", "")}
    for need in project["dependencies"]:
        name, _, oldest = need.partition(">=")
        wanted.add((f"py-{name.lower()}", f"{oldest}:" if oldest else ""))
    assert recipes["nearmetal"][1] == wanted
    # The sources of the packages that Spack lacks are those of the lock file.
    lock = (ROOT / "tools/setup/requirements.txt").read_text()
    for name, (versions, _) in recipes.items():
        if name.startswith("py-"):
            ((version, digest),) = versions.items()
            _, found, pin = lock.partition(f"\n{name.removeprefix('py-')}=={version} ")
            assert found
            assert f"--hash=sha256:{digest}" in pin.partition("\n    # via")[0]


def test_every_digest_is_right() -> None:
    lines = (PACKAGES / "SHA256SUMS").read_text().splitlines()
    assert len(lines) >= 8
    for line in lines:
        digest, name = line.split("  ")
        assert hashlib.sha256((PACKAGES / name).read_bytes()).hexdigest() == digest


def test_a_second_build_gives_the_same_bytes(tmp_path: Path) -> None:
    """In another folder, at another time, in another time zone."""
    script = ROOT / "tools/package/packages.sh"
    env = os.environ | {"TZ": "Pacific/Auckland", "TMPDIR": str(tmp_path)}
    subprocess.run([script, tmp_path / "again"], env=env, check=True, timeout=1500)
    first = (PACKAGES / "SHA256SUMS").read_text()
    assert (tmp_path / "again/SHA256SUMS").read_text() == first
