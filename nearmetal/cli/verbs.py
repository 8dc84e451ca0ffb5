# SPDX-License-Identifier: Apache-2.0
"""The verbs in the order of the help, and the parser made of them.

The verb `up` of the module `cluster` is two functions there: `up_options(parser)` adds its arguments
(a verb without arguments has no such function), and `on_up(args, view)` does the work and returns
the exit code. The module is imported when the command line uses the verb. It imports at its top only
what is quick to load, and everything else in the function that uses it: so each help is quick.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import nearmetal
from nearmetal.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nearmetal.cli.view import View

    Handler = Callable[[argparse.Namespace, View], int]


class Verb(NamedTuple):
    """One verb: its module in nearmetal.cli ("" for a group), its line in the help, an example."""

    module: str
    summary: str
    example: str


VERBS = {
    "demo": Verb(
        "demo",
        "create two nodes on this machine, run benchmarks between them, write a report",
        "nearmetal demo --output /tmp/demo",
    ),
    "plan": Verb(
        "cluster",
        "show the changes that `up` would make",
        "nearmetal plan examples/two-nodes.yaml",
    ),
    "up": Verb(
        "cluster",
        "create the cluster that a spec describes, or complete a partly created one",
        "nearmetal up examples/two-nodes.yaml",
    ),
    "status": Verb(
        "cluster",
        "show the nodes of a cluster: addresses, cores, health",
        "nearmetal status examples/two-nodes.yaml",
    ),
    "down": Verb(
        "cluster",
        "remove a cluster with its jobs, processes, devices and records",
        "nearmetal down examples/two-nodes.yaml",
    ),
    "run": Verb(
        "job",
        "run an MPI program in a cluster",
        "nearmetal run examples/two-nodes.yaml --mpi mpich5 -n 2 -- ./hello",
    ),
    "exec": Verb(
        "job",
        "run a program in one node, on the cores of that node",
        "nearmetal exec examples/two-nodes.yaml n1 -- hostname",
    ),
    "locality": Verb(
        "job",
        "show which channel each pair of nodes uses, and the reason",
        "nearmetal locality examples/near-far.yaml",
    ),
    "bench": Verb(
        "bench",
        "run benchmarks on a cluster and keep their raw output",
        "nearmetal bench examples/two-nodes.yaml --suite quick --mpi openmpi5",
    ),
    "report": Verb(
        "demo",
        "write a report of the results of `bench`: HTML, Markdown, CSV",
        "nearmetal report results/20260101-120000-two-nodes",
    ),
    "tune": Verb(
        "bench",
        "measure the copy rates of this machine for the provider",
        "nearmetal tune",
    ),
    "study": Verb(
        "",
        "run or import a study, compare its arms, write its report, check claims",
        "nearmetal study import logs --output my-study",
    ),
    "study run": Verb(
        "study",
        "run the launches of a study file, or resume them",
        "nearmetal study run examples/near-or-tcp.yaml --output results/near-or-tcp",
    ),
    "study import": Verb(
        "study",
        "import directories of logs into a study",
        "nearmetal study import logs --labels labels.yaml --output my-study",
    ),
    "study judge": Verb(
        "study",
        "compare one arm of a study with another, with a verdict for each point",
        "nearmetal study judge my-study bare-metal vm",
    ),
    "study lint": Verb(
        "study_claims",
        "find claims that contradict each other or the data",
        "nearmetal study lint paper.md --data my-study",
    ),
    "study published": Verb(
        "study_claims",
        "show the numbers of a published study and their source lines",
        "nearmetal study published vmw-adapter",
    ),
    "study report": Verb(
        "study",
        "write the report of a study: HTML, Markdown, CSV, SVG",
        "nearmetal study report my-study bare-metal vm",
    ),
    "study reproduce": Verb(
        "study_claims",
        "test the claims of a published study on your own data",
        "nearmetal study reproduce sdsc my-study --arm sr-iov-ib=vm --arm native-ib=metal",
    ),
    "study tax": Verb(
        "study_claims",
        "split the performance loss of a VM into missing cores and virtualization",
        "nearmetal study tax my-study bare-metal bare-metal-44 vm",
    ),
    "advise": Verb(
        "advise",
        "rank the network adapters that meet given needs, with reasons",
        "nearmetal advise --platform vsphere --vsphere 8.0U2 --fabric roce --vms-per-adapter 4",
    ),
    "image": Verb(
        "",
        "build, list and remove images for virtual machines",
        "nearmetal image build",
    ),
    "image build": Verb(
        "image",
        "build an image, unless the cache holds it",
        "nearmetal image build --with compilers",
    ),
    "image list": Verb("image", "list the images in the cache", "nearmetal image list"),
    "image remove": Verb("image", "remove images from the cache", "nearmetal image remove --all"),
    "top": Verb(
        "top",
        "show the traffic of running jobs: sender, receiver, channel",
        "nearmetal top --once --sort bytes",
    ),
    "host": Verb(
        "",
        "prepare machines to host virtual machines, show virtual functions and their owners",
        "nearmetal host plan examples/hosts/rack1.yaml",
    ),
    "host plan": Verb(
        "host",
        "show the missing steps of hosts, from BIOS to virtual functions, and the reboots",
        "nearmetal host plan examples/hosts/rack1.yaml",
    ),
    "host apply": Verb(
        "host",
        "apply the changes of the plan to hosts, and reboot hosts where a step needs it",
        "nearmetal host apply examples/hosts/rack1.yaml",
    ),
    "host status": Verb(
        "host",
        "show the present state of hosts and the differences from their file",
        "nearmetal host status examples/hosts/rack1.yaml",
    ),
    "host rollback": Verb(
        "host",
        "restore the state of hosts before the first `apply`; reboots hosts too",
        "nearmetal host rollback examples/hosts/rack1.yaml --dry-run",
    ),
    "host vf": Verb(
        "host",
        "show SR-IOV adapters, their virtual functions (VFs) and the owners",
        "nearmetal host vf",
    ),
    "import": Verb(
        "",
        "convert the cluster file of another tool to a spec",
        "nearmetal import vhpc cluster.conf --vcenter vcenter.example.org",
    ),
    "import vhpc": Verb(
        "cluster",
        "convert a cluster file of vhpc-toolkit to a spec",
        "nearmetal import vhpc cluster.conf --vcenter vcenter.example.org",
    ),
    "slurm": Verb(
        "",
        "show, create and remove the containers of Slurm jobs on this node",
        "nearmetal slurm status",
    ),
    "slurm status": Verb(
        "slurm",
        "show the containers and VFs of jobs on this node, and leaks",
        "nearmetal slurm status",
    ),
    "slurm task": Verb(
        "slurm",
        "run a task of a Slurm step in a container; needs neither the plugin nor root",
        "srun -N2 --ntasks-per-node=2 nearmetal slurm task -- ./app",
    ),
    "slurm launch": Verb(
        "slurm",
        "create the container of a job on this node; needs root",
        "nearmetal slurm launch --job 7 --uid 1000 --segment 67108864",
    ),
    "slurm reclaim": Verb(
        "slurm",
        "end the containers of jobs on this node and return their VFs; needs root",
        "nearmetal slurm reclaim --ended",
    ),
}
"""Every verb; a verb of a group follows its group."""

_TYPES = {"N": int, "BYTES": int, "FILE": Path, "DIR": Path, "STUDY": Path}

_DESCRIPTION = """\
nearmetal creates virtual HPC clusters and runs unmodified MPI programs in them. Each pair of ranks
uses the fastest channel that works between them, and nearmetal reports the channel in use.
"""

EPILOG = """\
exit codes:
  0  success
  1  error
  2  wrong usage, for example an unknown option
  3  `plan`: the plan has changes
  4  a check failed, for example `status`: the cluster differs from its spec
`run` and `exec` return the exit code of the program.

`nearmetal VERB --help` shows the arguments and options of a verb.

example: nearmetal up examples/two-nodes.yaml
         nearmetal run examples/two-nodes.yaml -- ./hello
"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are UsageErrors, so that --json shows them too."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        raise UsageError(message, f"see `{self.prog} --help`")


class VerbParser(Parser):
    """The parser of one verb, without its options until the command line uses the verb."""

    def __init__(self, *, verb: str = "", **options: Any) -> None:
        """`verb`: its name in VERBS."""
        super().__init__(**options)
        self._verb = verb

    def load(self) -> None:
        """Let the module of the verb add the options, once."""
        name, self._verb = self._verb, ""
        if not name or not VERBS[name].module:
            return
        module = importlib.import_module(f"nearmetal.cli.{VERBS[name].module}")
        word = name.rpartition(" ")[2]
        add_options = getattr(module, f"{word}_options", None)
        if add_options is not None:
            add_options(self)
        self.add_argument(
            "--json", action="store_true", help="print the result as one JSON document"
        )
        self.set_defaults(handler=getattr(module, f"on_{word}"))

    def option(
        self, words: str, text: str, *, to: argparse._ArgumentGroup | None = None, **more: Any
    ) -> None:
        """Add an argument in the form of the help, for example "-n --ranks N" or "file FILE".

        `text` is its help, and `to` a group of the parser. The last word in capitals implies the
        type. An option without such a word, and without anything in `more`, is a switch.
        """
        *names, last = words.split()
        if names and not last.startswith("-"):
            more = {"metavar": last} | ({"type": _TYPES[last]} if last in _TYPES else {}) | more
        else:
            names = [*names, last]
            more = more or {"action": "store_true"}
        (to or self).add_argument(*names, help=text, **more)

    def parse_known_args(
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Load the verb first: the command line uses it."""
        self.load()
        return super().parse_known_args(args, namespace)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; it imports the module of a verb when it parses that verb."""
    parser = Parser(
        prog="nearmetal",
        description=_DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=nearmetal.__version__)
    groups = {"": _subparsers(parser, "verb")}
    for name, (module, summary, example) in VERBS.items():
        group, _, word = name.rpartition(" ")
        made = groups[group].add_parser(
            word,
            verb=name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=f"example: {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if not module:
            groups[name] = _subparsers(made, "action")
    return parser


def _subparsers(parser: argparse.ArgumentParser, dest: str) -> Any:
    return parser.add_subparsers(dest=dest, metavar="VERB", required=True, parser_class=VerbParser)
