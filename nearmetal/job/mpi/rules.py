# SPDX-License-Identifier: Apache-2.0
"""The rules by which an MPI chooses the algorithm of a collective, in its own format. Pure.

Open MPI reads a file of its component `tuned`, MPICH a tree in JSON, and Intel MPI variables. The
facts about these formats are in docs/design/collectives.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from nearmetal.core.errors import LaunchError
from nearmetal.job.mpi.installed import Family, Mpi

COLLECTIVES = ("allreduce", "alltoall", "bcast", "allgather", "reduce")
"""The collectives with rules, as the programs and the MPIs name them."""

Tree = dict[str, Any]


@dataclass(frozen=True)
class AlgorithmChoice:
    """An algorithm for a collective among `ranks` ranks, from `low` to `high` bytes.

    The bytes are those that each rank gives to each other one. `high` None: no end.
    """

    collective: str
    ranks: int
    low: int
    high: int | None
    algorithm: str


@dataclass(frozen=True)
class Rules:
    """Variables for the ranks, and the text of a file; `variable` gets its path.

    `file` "": the MPI reads no file. `ranks`: the number of ranks of the jobs that may use rules
    that would serve any; None: each rule has its own number.
    """

    variables: Mapping[str, str]
    variable: str = ""
    file: str = ""
    ranks: int | None = None


FILE_VARIABLES: Mapping[Mpi, str] = {
    Mpi.OPENMPI4: "OMPI_MCA_coll_tuned_dynamic_rules_filename",
    Mpi.OPENMPI5: "OMPI_MCA_coll_tuned_dynamic_rules_filename",
    Mpi.MPICH5: "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE",
}
"""The variable with the path of the rules, of each MPI that reads a file."""

_NUMBERS: Mapping[str, Mapping[str, int]] = {
    "allreduce": {"linear": 1, "nonoverlapping": 2, "recursive_doubling": 3, "rabenseifner": 6},
    "alltoall": {"linear": 1, "pairwise": 2, "modified_bruck": 3, "linear_sync": 4},
    "bcast": {
        "linear": 1,
        "chain": 2,
        "pipeline": 3,
        "split_binary_tree": 4,
        "binary_tree": 5,
        "binomial": 6,
        "knomial": 7,
        "scatter_allgather": 8,
        "scatter_allgather_ring": 9,
    },
    "allgather": {"linear": 1, "bruck": 2, "recursive_doubling": 3, "ring": 4, "neighbor": 5},
    "reduce": {"linear": 1, "in-order_binary": 6, "rabenseifner": 7},
}
"""Numbers of Open MPI 4.1 and 5. A rule does not see the operation of a reduction, so that those
are left out that are wrong for operations that do not commute."""

_OF_EQUAL_COUNTS = ("split_binary_tree", "scatter_allgather", "scatter_allgather_ring")
"""Algorithms for bcast of Open MPI that divide the count of elements. They stand still or fail if
the ranks describe the same bytes by other types and counts, which MPI allows."""

_OF_EQUAL_TYPES = "modified_bruck"
"""The algorithm for alltoall of Open MPI 4.1 that writes past the receive buffer if the types for
sending and receiving have other extents."""

_IDENTIFIERS = {"allgather": 0, "allreduce": 2, "alltoall": 3, "bcast": 7, "reduce": 11}
"""Of Open MPI's collectives."""

_NAMES: Mapping[str, Sequence[str]] = {
    "allreduce": ("recursive_doubling", "reduce_scatter_allgather", "ring"),
    "alltoall": ("brucks", "pairwise", "scattered"),
    "bcast": ("binomial", "scatter_recursive_doubling_allgather", "scatter_ring_allgather"),
    "allgather": ("brucks", "recursive_doubling", "ring"),
    "reduce": ("binomial", "reduce_scatter_gather"),
}
"""Of MPICH: those without parameters."""

_POWERS_OF_TWO = {
    ("allgather", "recursive_doubling"),
    ("bcast", "scatter_recursive_doubling_allgather"),
}
"""Algorithms of MPICH for such numbers of ranks only."""

_PRESETS = {"alltoall": 13, "bcast": 22, "allgather": 6}
"""The last preset of Intel MPI 2021; the first is 1."""

_OF_ALL_BYTES = ("alltoall", "allgather")
"""Collectives whose size is that of all blocks of a rank for Open MPI."""

REDUCTIONS = ("allreduce", "reduce")


def algorithms(mpi: Mpi, collective: str, ranks: int) -> tuple[str, ...]:
    """Return the algorithms that rules can choose; none for reductions of Intel MPI.

    Its rule serves all operations, and not all of its presets do.
    """
    if mpi.family is Family.OPENMPI:
        unsafe: Sequence[str] = _OF_EQUAL_COUNTS if collective == "bcast" else ()
        if mpi is Mpi.OPENMPI4 and collective == "alltoall":
            unsafe = (_OF_EQUAL_TYPES,)
        return tuple(name for name in _NUMBERS[collective] if name not in unsafe)
    if mpi is Mpi.IMPI:
        if collective in REDUCTIONS:
            return ()
        return tuple(str(number) for number in range(1, _PRESETS[collective] + 1))
    power = ranks & (ranks - 1) == 0
    return tuple(n for n in _NAMES[collective] if power or (collective, n) not in _POWERS_OF_TWO)


def whole_collective(mpi: Mpi) -> bool:
    """Whether a rule holds for each size and each number of ranks: Intel MPI ignores conditions."""
    return mpi is Mpi.IMPI


def rules_for(mpi: Mpi, choices: Sequence[AlgorithmChoice], own: Tree | None = None) -> Rules:
    """Return the rules of these choices, which do not overlap.

    `own`: the tree in the library of MPICH (`own_tree`), which the rules extend.
    """
    ordered = sorted(choices, key=lambda c: (_IDENTIFIERS[c.collective], c.ranks, c.low))
    if mpi is Mpi.IMPI:
        named = {f"I_MPI_ADJUST_{c.collective.upper()}": c.algorithm for c in ordered}
        return Rules(named, ranks=ordered[0].ranks)
    if mpi is Mpi.MPICH5:
        if own is None:
            raise LaunchError("the rules of MPICH extend those of its library, which are missing")
        text = json.dumps(_mpich(own, ordered), separators=(",", ":"))
        return Rules({}, FILE_VARIABLES[mpi], text + "\n")
    text = "\n".join(_openmpi(ordered)) + "\n"
    found = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1"}
    return Rules(found, FILE_VARIABLES[mpi], text)


def _openmpi(choices: Sequence[AlgorithmChoice]) -> Iterator[str]:
    """Yield the lines of the file. Algorithm 0 is the MPI's own choice.

    A rule holds up to the next larger number of ranks or size, and the first also below its own.
    """
    collectives = [(name, list(of)) for name, of in groupby(choices, lambda c: c.collective)]
    yield f"{len(collectives)} # collectives"
    for name, of in collectives:
        sizes = [(ranks, list(group)) for ranks, group in groupby(of, lambda c: c.ranks)]
        rules = {0: ["0 0 0 0"]}
        for ranks, group in sizes:
            rules[ranks] = list(_openmpi_sizes(name, ranks, group))
            rules.setdefault(ranks + 1, ["0 0 0 0"])
        yield f"{_IDENTIFIERS[name]} # {name}"
        yield f"{len(rules)} # numbers of ranks"
        for ranks, lines in sorted(rules.items()):
            yield f"{ranks} # ranks"
            yield f"{len(lines)} # sizes: first byte, algorithm, fan-out, segment"
            yield from lines


def _openmpi_sizes(name: str, ranks: int, choices: Sequence[AlgorithmChoice]) -> Iterator[str]:
    scale = ranks if name in _OF_ALL_BYTES else 1
    starts = {0: 0}
    for choice in choices:
        starts[choice.low * scale] = _NUMBERS[name][choice.algorithm]
        if choice.high is not None:
            starts[(choice.high + 1) * scale] = 0
    for start, number in sorted(starts.items()):
        yield f"{start} {number} 0 0"


_TREE = re.compile(rb'\{"collective=bcast":[^\0]{1,1000000}')


def own_tree(library: bytes) -> Tree:
    """Return the tree in the library of MPICH by which it chooses; raises LaunchError."""
    for found in _TREE.finditer(library):
        try:
            tree: Tree = json.loads(found[0])
            intra = [tree[f"collective={name}"]["comm_type=intra"] for name in COLLECTIVES]
        except (ValueError, KeyError, TypeError):
            continue
        if all(isinstance(one, dict) for one in intra) and b"algorithm=MPIR_Bcast" in found[0]:
            return tree
    raise LaunchError(
        "this MPICH has no tree of algorithms in its library, as MPICH 5.0 has it",
        "use another MPI: there are no rules for this release",
    )


def _mpich(own: Tree, choices: Sequence[AlgorithmChoice]) -> Tree:
    """Return the library's own tree with the choices. A branch that matches is never left again."""
    tree = dict(own)
    for name, of in groupby(choices, lambda c: c.collective):
        key = f"collective={name}"
        usual = own[key]["comm_type=intra"]
        branches: Tree = {}
        for ranks, group in groupby(of, lambda c: c.ranks):
            branches[f"comm_size<{ranks}"] = usual
            branches[f"comm_size<={ranks}"] = _mpich_guarded(name, ranks, list(group), usual)
        branches["comm_size=any"] = usual
        tree[key] = own[key] | {"comm_type=intra": branches}
    return tree


def _mpich_guarded(name: str, ranks: int, choices: Sequence[AlgorithmChoice], usual: Tree) -> Tree:
    """Return the branch of a number of ranks; calls that an algorithm may not serve stay usual."""
    if name == "allgather":
        sizes = _mpich_sizes("total_msg_size", ranks, name, choices, usual)
    else:
        sizes = _mpich_sizes("avg_msg_size", 1, name, choices, usual)
    if name == "alltoall":
        return {"is_sendbuf_inplace=yes": usual, "is_sendbuf_inplace=no": sizes}
    if name in REDUCTIONS:
        large = {"count<pow2": usual, "count=any": sizes}
        commuting = {"is_commutative=no": usual, "is_commutative=yes": large}
        return {"is_op_built_in=no": usual, "is_op_built_in=yes": commuting}
    return sizes


def _mpich_sizes(
    word: str, scale: int, name: str, choices: Sequence[AlgorithmChoice], usual: Tree
) -> Tree:
    branches: Tree = {}
    for choice in choices:
        leaf: Tree = {f"algorithm=MPIR_{name.capitalize()}_intra_{choice.algorithm}": {}}
        if choice.low > 0:
            branches.setdefault(f"{word}<{choice.low * scale}", usual)
        if choice.high is None:
            branches[f"{word}=any"] = leaf
        else:
            branches[f"{word}<{(choice.high + 1) * scale}"] = leaf
    branches.setdefault(f"{word}=any", usual)
    return branches
