# SPDX-License-Identifier: Apache-2.0
"""One library in every libfabric that is here, however it is told where and what to load."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system.faults.arena import Arena, exchange, open_all
from tests.system.faults.peer import ECONNRESET, PROVIDER_DIR, REPOSITORY, Peer

pytestmark = pytest.mark.system

LIBRARY = PROVIDER_DIR / "libnearmetal-fi.so"
ENODATA = "61"


@dataclass(frozen=True)
class Libfabric:
    """How to run a program over one of them."""

    directory: str = ""
    wrapper: str = ""
    plus: bool = False  # takes +PATH beside its own directory of providers
    needs_own: bool = False  # its tcp is a library in its own directory

    def prefix(self) -> tuple[str, ...]:
        """Return what stands before the program."""
        return (str(REPOSITORY / self.wrapper),) if self.wrapper else ()

    def environment(self) -> dict[str, str]:
        """Return the variables with which its library is found first."""
        return {"LD_LIBRARY_PATH": str(REPOSITORY / self.directory)} if self.directory else {}

    def required_path(self) -> Path:
        """Return what must be there; otherwise the set-up has left it out."""
        return REPOSITORY / (self.wrapper or self.directory or ".")


LIBFABRICS = {
    "1.17": Libfabric(),
    "2.1": Libfabric(wrapper="build/libfabric/2.1/run", plus=True),
    "2.5 of openmpi5": Libfabric("build/mpi/openmpi5/lib/openmpi", plus=True),
    "2.5 of mpich5": Libfabric("build/mpi/mpich5/lib/mpich", plus=True),
    "1.21-impi": Libfabric("build/mpi/impi/lib", needs_own=True),
}

ANY = pytest.mark.parametrize("name", LIBFABRICS)


def library_of(name: str) -> Libfabric:
    library = LIBFABRICS[name]
    assert library.required_path().exists(), "make setup brings it"
    return library


def provider_directory(arena: Arena, library: Libfabric) -> Path:
    """A directory with our library alone, or beside those without which there is no network."""
    directory = arena.root / "providers"
    if directory.exists():
        return directory
    directory.mkdir()
    (directory / LIBRARY.name).symlink_to(LIBRARY)
    if library.needs_own:
        for other in (REPOSITORY / library.directory).glob("*-fi.so"):
            (directory / other.name).symlink_to(other)
    return directory


def start(arena: Arena, name: str, library: Libfabric, **knobs: str) -> Peer:
    env = {"FI_PROVIDER_PATH": str(provider_directory(arena, library))}
    return arena.start(name, {**env, **library.environment(), **knobs}, prefix=library.prefix())


def expect_exchange(arena: Arena, a: Peer, b: Peer, channel: str) -> None:
    open_all(a, b)
    a.knows(b)
    b.knows(a)
    exchange(a, b)
    assert a.finish() == 0
    assert b.finish() == 0
    assert a.way_to(b)["channel"] == channel, a.way_to(b)
    assert b.way_to(a)["channel"] == channel, b.way_to(a)
    assert not a.log_lines
    assert not arena.sockets()


@ANY
@pytest.mark.parametrize("channel", ["shm", "net"])
def test_every_libfabric_carries_messages(arena: Arena, name: str, channel: str) -> None:
    library = library_of(name)
    a, b = (start(arena, peer, library, CHANNELS=f"self,{channel}") for peer in "ab")
    expect_exchange(arena, a, b, channel)


@pytest.mark.parametrize("other", list(LIBFABRICS)[1:])
def test_neighbours_over_different_libfabrics_share_memory(arena: Arena, other: str) -> None:
    library = library_of(other)
    a = arena.start("a", {})
    b = start(arena, "b", library)
    expect_exchange(arena, a, b, "shm")


@pytest.mark.parametrize("name", [name for name, one in LIBFABRICS.items() if one.plus])
def test_the_path_of_the_library_can_be_added(arena: Arena, name: str) -> None:
    library = library_of(name)
    a, b = (start(arena, peer, library, FI_PROVIDER_PATH=f"+{LIBRARY}") for peer in "ab")
    expect_exchange(arena, a, b, "shm")


@ANY
@pytest.mark.parametrize("how", ["two names", "two directories"])
def test_a_library_that_is_found_twice_serves_once(arena: Arena, name: str, how: str) -> None:
    library = library_of(name)
    directory = provider_directory(arena, library)
    path = str(directory)
    if how == "two names":
        (directory / "libanother-fi.so").symlink_to(LIBRARY)
    else:
        other = arena.root / "copies"
        other.mkdir()
        shutil.copy(LIBRARY, other)
        path = f"{directory}:{other}"
    a, b = (start(arena, peer, library, FI_PROVIDER_PATH=path) for peer in "ab")
    expect_exchange(arena, a, b, "shm")


@ANY
@pytest.mark.parametrize("providers", ["nearmetal", "nearmetal,tcp", "^sockets"])
def test_a_list_of_providers_does_not_hide_the_network(
    arena: Arena, name: str, providers: str
) -> None:
    library = library_of(name)
    a, b = (
        start(arena, peer, library, FI_PROVIDER=providers, CHANNELS="self,net") for peer in "ab"
    )
    expect_exchange(arena, a, b, "net")


@ANY
def test_a_list_of_other_providers_leaves_it_out(arena: Arena, name: str) -> None:
    a = start(arena, "a", library_of(name), FI_PROVIDER="tcp")
    a.tell("open")
    assert a.expect("failed", "open")[0] == ENODATA


@ANY
def test_a_death_is_noticed_over_every_network(arena: Arena, name: str) -> None:
    library = library_of(name)
    knobs = {"CHANNELS": "self,net", "KEEPALIVE_MS": "200"}
    a, b, c = (start(arena, peer, library, **knobs) for peer in "abc")
    open_all(a, b, c)
    a.knows(b, c)
    b.knows(a)
    exchange(a, b)
    a.post("recv", "known", "b", 8, 1)
    a.post("recv", "never", "c", 8, 1)
    b.kill()
    assert a.expect("error", "known")[0] == str(ECONNRESET)
    c.kill()
    assert a.expect("error", "never")[0] == str(ECONNRESET)
