# SPDX-License-Identifier: Apache-2.0
"""The rules for collectives, read back as Open MPI and MPICH read them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.core.errors import LaunchError, UsageError
from nearmetal.core.process import Command, LocalRunner
from nearmetal.job.collectives import library_digest, mpi_library, read_rules, write_rules
from nearmetal.job.mpi import Installation, Mpi, find_installations
from nearmetal.job.mpi.rules import (
    COLLECTIVES,
    AlgorithmChoice,
    Rules,
    algorithms,
    own_tree,
    rules_for,
)
from tests.system.need import need_mpi

if TYPE_CHECKING:
    from collections.abc import Iterator

CHOICES = (
    AlgorithmChoice("alltoall", 4, 512, 5791, "linear"),
    AlgorithmChoice("alltoall", 4, 5792, 131071, "pairwise"),
    AlgorithmChoice("alltoall", 5, 8, 15, "linear"),
    AlgorithmChoice("allreduce", 8, 0, None, "recursive_doubling"),
)

TREE: dict[str, Any] = {
    "collective=bcast": {"comm_type=intra": {"algorithm=MPIR_Bcast_intra_binomial": {}}},
    "collective=allreduce": {
        "comm_type=intra": {"algorithm=MPIR_Allreduce_intra_recursive_doubling": {}},
        "comm_type=inter": {"algorithm=MPIR_Allreduce_inter_reduce_exchange_bcast": {}},
    },
    "collective=alltoall": {"comm_type=intra": {"algorithm=MPIR_Alltoall_intra_pairwise": {}}},
    "collective=allgather": {"comm_type=intra": {"algorithm=MPIR_Allgather_intra_ring": {}}},
    "collective=reduce": {"comm_type=intra": {"algorithm=MPIR_Reduce_intra_binomial": {}}},
}
LIBRARY = (
    b'\x7fELF\0{"collective=bcast":{broken\0'
    + json.dumps(TREE, separators=(",", ":")).encode()
    + b"\0more"
)


def openmpi(text: str, collective: int, ranks: int, size: int) -> int:
    """Return the algorithm that Open MPI 4.1 and 5.0 take from a file of rules."""
    numbers = (int(n) for n in re.sub(r"#.*", "", text).split())

    def read() -> Iterator[tuple[int, int, int, list[int]]]:
        for _ in range(next(numbers)):
            identifier = next(numbers)
            for _ in range(next(numbers)):
                of_ranks = next(numbers)
                rules = next(numbers)
                for index in range(rules):
                    yield identifier, of_ranks, index, list(islice(numbers, 4))

    rows = list(read())
    assert next(numbers, None) is None
    assert all(rule[0] == 0 for _, _, index, rule in rows if index == 0)
    fitting = [r for r in rows if r[0] == collective and r[1] <= ranks]
    if not fitting:
        return 0
    best = max(r[1] for r in fitting)
    return [r[3][1] for r in fitting if r[1] == best and r[3][0] <= size][-1]


def mpich(tree: Any, facts: dict[str, Any]) -> str:
    """Return the algorithm that MPICH 5.0 takes: the first branch that fits is never left."""
    for key, below in tree.items():
        if key.startswith("algorithm="):
            return str(key.removeprefix("algorithm="))
        parts = re.fullmatch(r"(\w+?)(<=|<|=)(\w+)", key)
        assert parts is not None
        name, how, value = parts.groups()
        have = facts[name]
        if value == "any":
            fits = True
        elif value == "pow2":
            fits = have < facts["pow2"]
        elif how == "=":
            fits = str(have) == value
        else:
            fits = have < int(value) if how == "<" else have <= int(value)
        if fits:
            return mpich(below, facts)
    raise AssertionError(f"no branch fits: {list(tree)}")


@pytest.mark.parametrize(
    ("ranks", "size", "number"),
    [
        (3, 1024, 0),
        (4, 511, 0),
        (4, 512, 1),
        (4, 5791, 1),
        (4, 5792, 2),
        (4, 131071, 2),
        (4, 131072, 0),
        (5, 8, 1),
        (5, 16, 0),
        (6, 8, 0),
    ],
)
def test_open_mpi_takes_a_choice_for_its_ranks_and_sizes_only(
    ranks: int, size: int, number: int
) -> None:
    file = rules_for(Mpi.OPENMPI5, CHOICES).file
    # Open MPI counts the bytes of all blocks.
    assert openmpi(file, 3, ranks, ranks * size) == number
    assert openmpi(file, 3, ranks, ranks * size + ranks - 1) == number


def test_open_mpi_has_no_rule_for_other_collectives_and_ranks() -> None:
    file = rules_for(Mpi.OPENMPI4, CHOICES).file
    assert [openmpi(file, 2, ranks, 100) for ranks in (2, 7, 8, 9)] == [0, 0, 3, 0]
    assert openmpi(file, 7, 4, 100) == 0


def facts(ranks: int, size: int, **more: Any) -> dict[str, Any]:
    """A call of MPICH on a communicator."""
    return {
        "comm_type": "intra",
        "comm_size": ranks,
        "avg_msg_size": size,
        "total_msg_size": size * ranks,
        "count": size // 4,
        "pow2": 4,
        "is_op_built_in": "yes",
        "is_commutative": "yes",
        "is_sendbuf_inplace": "no",
        **more,
    }


def of_mpich(collective: str, algorithm: str, low: int, high: int | None, ranks: int = 4) -> Any:
    choice = AlgorithmChoice(collective, ranks, low, high, algorithm)
    tree = json.loads(rules_for(Mpi.MPICH5, [choice], own_tree(LIBRARY)).file)
    assert [key for key in tree if tree[key] != TREE[key]] == [f"collective={collective}"]
    return tree[f"collective={collective}"]


@pytest.mark.parametrize(
    ("collective", "usual", "algorithm"),
    [
        ("alltoall", "pairwise", "brucks"),
        ("allgather", "ring", "brucks"),
        ("bcast", "binomial", "scatter_ring_allgather"),
        ("reduce", "binomial", "reduce_scatter_gather"),
    ],
)
def test_mpich_takes_a_choice_for_its_ranks_and_sizes_only(
    collective: str, usual: str, algorithm: str
) -> None:
    tree = of_mpich(collective, algorithm, 512, 1023)
    calls = [(3, 600), (4, 511), (4, 512), (4, 1023), (4, 1024), (5, 600)]
    found = [mpich(tree, facts(*call)).rpartition("_intra_")[2] for call in calls]
    assert found == [usual, usual, algorithm, algorithm, usual, usual]


@pytest.mark.parametrize("more", [{"is_op_built_in": "no"}, {"is_commutative": "no"}, {"count": 3}])
def test_mpich_keeps_its_own_choice_where_an_algorithm_would_be_wrong(more: dict[str, Any]) -> None:
    tree = of_mpich("allreduce", "ring", 0, None)
    assert mpich(tree, facts(4, 512)) == "MPIR_Allreduce_intra_ring"
    usual = "MPIR_Allreduce_intra_recursive_doubling"
    assert mpich(tree, facts(4, 512, **more)) == usual
    assert mpich(tree, facts(4, 512, comm_type="inter")).startswith("MPIR_Allreduce_inter")
    exchanged = of_mpich("alltoall", "brucks", 0, None)
    call = facts(4, 512, is_sendbuf_inplace="yes")
    assert mpich(exchanged, call) == "MPIR_Alltoall_intra_pairwise"


def test_a_library_without_the_tree_is_refused() -> None:
    with pytest.raises(LaunchError, match="no tree of algorithms"):
        own_tree(LIBRARY.replace(b"collective=reduce", b"collective=nobody"))


def test_algorithms_for_powers_of_two_are_for_no_other_number_of_ranks() -> None:
    assert "recursive_doubling" in algorithms(Mpi.MPICH5, "allgather", 8)
    assert "recursive_doubling" not in algorithms(Mpi.MPICH5, "allgather", 6)


def test_algorithms_of_open_mpi_that_some_types_break_are_no_candidates() -> None:
    for mpi in (Mpi.OPENMPI4, Mpi.OPENMPI5):
        found = algorithms(mpi, "bcast", 4)
        assert "binomial" in found
        assert not {n for n in found if n.startswith(("scatter", "split"))}
    assert "modified_bruck" not in algorithms(Mpi.OPENMPI4, "alltoall", 4)
    assert "modified_bruck" in algorithms(Mpi.OPENMPI5, "alltoall", 4)


def test_intel_gets_no_algorithm_for_reductions(of_intel: tuple[Path, Installation]) -> None:
    assert [name for name in COLLECTIVES if not algorithms(Mpi.IMPI, name, 4)] == [
        "allreduce",
        "reduce",
    ]
    directory, installation = of_intel
    change(directory / "impi.env", "ADJUST_ALLTOALL=2", "ADJUST_ALLREDUCE=7")
    with pytest.raises(LaunchError, match="is no variable of these rules"):
        read_rules(directory, installation)


def test_intel_gets_one_algorithm_for_a_collective() -> None:
    choices = [AlgorithmChoice("alltoall", 4, 0, None, "2")]
    assert rules_for(Mpi.IMPI, choices) == Rules({"I_MPI_ADJUST_ALLTOALL": "2"}, ranks=4)


@pytest.mark.parametrize("mpi", [Mpi.OPENMPI4, Mpi.OPENMPI5])
def test_the_installed_open_mpi_has_these_algorithms(mpi: Mpi) -> None:
    need_mpi(mpi)
    prefix = find_installations()[mpi].prefix
    own = {} if mpi is Mpi.OPENMPI4 else {"OPAL_PREFIX": str(prefix)}
    words = (f"{prefix}/bin/ompi_info", "--param", "coll", "tuned", "--level", "9")
    told = LocalRunner().check(Command(words, env=os.environ | own), timeout_s=60).text
    assert "coll_tuned_dynamic_rules_filename" in told
    for name in COLLECTIVES:
        line = re.search(rf"Which {name} algorithm is used\. ([^\n]*)", told)
        assert line is not None
        numbers = {int(number) for number in re.findall(r"(\d):? [a-z]", line[1])}
        for algorithm in algorithms(mpi, name, 4):
            file = rules_for(mpi, [AlgorithmChoice(name, 4, 0, None, algorithm)]).file
            used = {int(n) for n in re.findall(r"^0 ([1-9]) 0 0", file, re.MULTILINE)}
            # The help of allreduce omits rabenseifner, which the values of the parameter have.
            assert used <= numbers or algorithm == "rabenseifner", (name, line[1])


def test_the_installed_mpich_has_these_algorithms() -> None:
    need_mpi(Mpi.MPICH5)
    library = mpi_library(find_installations()[Mpi.MPICH5]).read_bytes()
    own_tree(library)
    for name in COLLECTIVES:
        for algorithm in algorithms(Mpi.MPICH5, name, 4):
            word = f"algorithm=MPIR_{name.capitalize()}_intra_{algorithm}"
            assert word.encode() + b"\0" in library


def test_the_installed_intel_mpi_has_these_presets() -> None:
    need_mpi(Mpi.IMPI)
    library = mpi_library(find_installations()[Mpi.IMPI]).read_bytes()
    for name in ("alltoall", "bcast", "allgather"):
        alias = f" @Alias:# I_MPI_ADJUST_{name.upper()} @"
        last = re.search(rb"range: 0-(\d+)" + alias.encode(), library)
        assert last is not None
        assert last[1].decode() == algorithms(Mpi.IMPI, name, 4)[-1]


@pytest.fixture
def installed(tmp_path: Path) -> Installation:
    library = tmp_path / "openmpi5/lib/libmpi.so.40"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"version 1")
    return Installation(Mpi.OPENMPI5, tmp_path / "openmpi5")


@pytest.fixture
def saved(tmp_path: Path, installed: Installation) -> Path:
    directory = tmp_path / "tuned with a space"
    directory.mkdir()
    write_rules(directory, installed, rules_for(Mpi.OPENMPI5, CHOICES), ["measured today"])
    return directory


def test_saved_rules_are_read_where_the_directory_is_now(
    saved: Path, installed: Installation
) -> None:
    found = read_rules(saved, installed)
    file = saved / "openmpi5.rules"
    assert found.file == file
    assert found.variables == {
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_dynamic_rules_filename": str(file),
    }
    assert "# measured today\n" in (saved / "openmpi5.env").read_text()
    moved = saved.rename(saved.with_name("moved"))
    again = read_rules(moved, installed)
    assert again.variables["OMPI_MCA_coll_tuned_dynamic_rules_filename"] == str(
        moved / "openmpi5.rules"
    )


def test_a_shell_reads_the_variables(saved: Path, installed: Installation) -> None:
    script = f"set -a; . '{saved}/openmpi5.env'; env"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    for name, value in read_rules(saved, installed).variables.items():
        assert f"{name}={value}\n" in done.stdout


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def test_rules_of_another_version_are_refused(saved: Path, installed: Installation) -> None:
    assert installed.library_directory is not None
    library = installed.library_directory / "libmpi.so.40"
    before = library_digest(installed)
    library.write_bytes(b"version 2")
    assert library_digest(installed) != before
    with pytest.raises(LaunchError, match="another version of Open MPI 5"):
        read_rules(saved, installed)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("# nearmetal-collectives 1", "# nearmetal-collectives 9", "not rules for Open MPI 5"),
        ("# mpi openmpi5", "# mpi mpich5", "not rules for Open MPI 5"),
        ("# library ", "# librarian ", "checksum of the measured library is missing"),
        ("OMPI_MCA_coll_tuned_use_dynamic_rules=", "LD_PRELOAD=", "'LD_PRELOAD' is no variable"),
        ("# file ", "# vile ", "checksum of the file with the rules is missing"),
        ("_rules=1", "_rules=2", "no such value: '2'"),
        ("_rules=1", "_rules='1", "no value that a shell reads"),
        ("_rules=1", "_rules=1 2", "no value that a shell reads"),
    ],
)
def test_damaged_variables_are_refused(
    saved: Path, installed: Installation, before: str, after: str, why: str
) -> None:
    change(saved / "openmpi5.env", before, after)
    with pytest.raises(LaunchError, match=why):
        read_rules(saved, installed)


def test_a_changed_or_missing_file_is_refused(saved: Path, installed: Installation) -> None:
    file = saved / "openmpi5.rules"
    change(file, "alltoall", "allt0all")
    with pytest.raises(LaunchError, match=r"not the file that openmpi5\.env was written with"):
        read_rules(saved, installed)
    file.unlink()
    with pytest.raises(LaunchError, match=r"openmpi5\.rules: No such file"):
        read_rules(saved, installed)
    (saved / "openmpi5.env").unlink()
    with pytest.raises(UsageError, match="has no rules for Open MPI 5"):
        read_rules(saved, installed)


@pytest.fixture
def of_intel(tmp_path: Path) -> tuple[Path, Installation]:
    library = tmp_path / "impi/lib/libmpi.so.12"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"version 1")
    installation = Installation(Mpi.IMPI, tmp_path / "impi")
    rules = rules_for(Mpi.IMPI, [AlgorithmChoice("alltoall", 4, 0, None, "2")])
    write_rules(tmp_path, installation, rules, ["measured today"])
    return tmp_path, installation


def test_rules_of_intel_mpi_keep_their_number_of_ranks(
    of_intel: tuple[Path, Installation],
) -> None:
    found = read_rules(*of_intel)
    assert (found.variables, found.ranks) == ({"I_MPI_ADJUST_ALLTOALL": "2"}, 4)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("# ranks 4\n", "", "measured number of ranks is missing"),
        ("=2", "=999", "I_MPI_ADJUST_ALLTOALL has no such value: '999'"),
        ("=2", "='2;1:0-8'", "no such value"),
    ],
)
def test_damaged_rules_of_intel_mpi_are_refused(
    of_intel: tuple[Path, Installation], before: str, after: str, why: str
) -> None:
    directory, installation = of_intel
    change(directory / "impi.env", before, after)
    with pytest.raises(LaunchError, match=why):
        read_rules(directory, installation)
