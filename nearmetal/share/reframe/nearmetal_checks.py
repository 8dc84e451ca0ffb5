# SPDX-License-Identifier: Apache-2.0
"""Checks of a cluster for ReFrame 4: the channels between its nodes, and a ping-pong.

The cluster must be up. docs/howto-reframe.md shows how a site runs them.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import performance_function, run_before, sanity_function, variable
from reframe.core.exceptions import SanityError

MEMORY = ("self", "shm", "segment")
"""The channels in memory, as nearmetal names them."""

SHORT, LONG = 8, 1 << 20
"""The sizes of the judged messages in bytes: those of the endpoints of a study."""


def _read(path: Path) -> Any:
    """Return a JSON document of nearmetal; raises SanityError, with its error if it is one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = f"{path.name} is no JSON document ({error}); read the output of the job"
        raise SanityError(why) from error
    if "error" in found:
        raise SanityError(f"nearmetal: {found['error']['message']}")
    return found


class _OfCluster(rfm.RunOnlyRegressionTest):
    """What both checks share. They run where the cluster was created, also on a site with Slurm."""

    program = variable(str, value="nearmetal")
    spec = variable(str)
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    local = True
    maintainers = ["nearmetal"]

    @property
    def target(self) -> str:
        """The spec as a path that holds in the stage directory too, or the name of a cluster."""
        return str(Path(self.spec).resolve()) if Path(self.spec).exists() else self.spec

    @property
    def stage(self) -> Path:
        """The directory of the job."""
        return Path(self.stagedir)

    @run_before("run")
    def _name_the_program(self) -> None:
        self.executable = shlex.quote(self.program)


@rfm.simple_test
class NearmetalChannels(_OfCluster):
    """Any two nodes meet in a channel that the site expects."""

    descr = "channels between the nodes of a cluster"
    channels = variable(str, value="shm,segment")
    tags = {"nearmetal"}

    @run_before("run")
    def _ask_for_the_matrix(self) -> None:
        command = shlex.join([self.program, "locality", self.target, "--json"])
        self.executable, self.executable_opts = command, [">locality.json"]

    @sanity_function
    def every_pair_is_as_expected(self) -> bool:
        """Refuse a pair of two nodes that has another channel, with the reason of nearmetal."""
        expected = self.channels.split(",")
        found = _read(self.stage / "locality.json").get("pairs", [])
        pairs = [pair for pair in found if pair["node"] != pair["peer"]]
        sn.assert_true(pairs, "the cluster has only one node").evaluate()
        for pair in pairs:
            way = f"{pair['node']} to {pair['peer']}: {pair['channel']} ({pair['reason']})"
            sn.assert_in(pair["channel"], expected, f"{way}, expected {self.channels}").evaluate()
        return True


@rfm.simple_test
class NearmetalPingPong(_OfCluster):
    """Memory carries messages right, and at least as fast as the network does in the same job."""

    descr = "ping-pong by nearmetal against the network of the same job"
    mpi = variable(str, value="")
    nodes = variable(str, value="")
    launches = variable(int, value=6)
    most_ratio = variable(float, value=1.0)
    tags = {"nearmetal", "performance"}

    @run_before("run")
    def _write_the_study(self) -> None:
        arm = {"cluster": self.target, "platform": "cluster", "placement": "two ranks"}
        if self.nodes:
            arm["nodes"] = self.nodes.split(",")
        pingpong = {"use": "pingpong", "ranks": 2}
        if self.mpi:
            pingpong["mpi"] = self.mpi
        study = {
            "format": 1,
            "name": "reframe",
            "arms": {
                "near": arm | {"way": "auto", "fabric": "nearmetal"},
                "net": arm | {"way": "net", "fabric": "network"},
            },
            "workloads": {"pingpong": pingpong},
            "launches": {"least": self.launches, "most": self.launches},
        }
        # Every JSON document is YAML.
        (self.stage / "study.yaml").write_text(json.dumps(study, indent=1), encoding="utf-8")
        self.executable_opts = ["study", "run", "study.yaml", "--output", "launches"]
        for words, output in (
            (("import", "launches", "--output", "verdicts"), ""),
            (("judge", "verdicts", "net", "near", "--margin", "0", "--json"), " >judge.json"),
        ):
            self.postrun_cmds.append(shlex.join([self.program, "study", *words]) + output)

    @sanity_function
    def bytes_are_right_and_the_channel_is_true(self) -> bool:
        """Believe the programs' own verification, and the counters of the provider."""
        made = _read(self.stage / "launches" / "manifest.json")["launches"]
        arms = [launch["arm"] for launch in made]
        for arm in ("near", "net"):
            sn.assert_eq(arms.count(arm), self.launches, f"launches of {arm}: {{0}}").evaluate()
        for launch in made:
            where = f"launch {launch['number']} ({launch['arm']})"
            sn.assert_eq(launch["exit_code"], 0, f"{where} ended with {{0}}").evaluate()
            log = self.stage / "launches" / launch["stdout"]
            what = f"{where}: its log has no line of verified sizes"
            sn.assert_found(r"^# verified pingpong sizes [1-9]", str(log), what).evaluate()
            proof = launch["proof"]
            sn.assert_eq(proof["verdict"], "proven", f"{where}: {proof['reason']}").evaluate()
            used = {name for name, count in proof["messages"].items() if count}
            allowed = MEMORY if launch["arm"] == "near" else ("self", "net")
            sn.assert_true(
                used - {"self"} and used.issubset(allowed), f"{where} used {sorted(used)}"
            ).evaluate()
        # ReFrame leaves out performance variables without a value, and the check would pass.
        for size in (SHORT, LONG):
            one = self._comparison(size)
            why = f"{size} bytes: {one['verdict']}: {one['reason']}"
            sn.assert_true(one["ratio"] and one["ratio"]["high"], why).evaluate()
        return True

    def _comparison(self, size: int) -> dict[str, Any]:
        """Return what the judge says about the times of memory and network."""
        for one in _read(self.stage / "judge.json")["comparisons"]:
            if (one["size"], one["metric"]) == (size, "time_p50"):
                return dict(one)
        raise SanityError(f"the judge has compared no times for {size} bytes")

    def _ratio(self, size: int, part: str) -> float:
        return float(self._comparison(size)["ratio"][part])

    @run_before("performance")
    def _expect_no_more_time_than_the_network(self) -> None:
        limit = (self.most_ratio, None, 0.0, "near/net")
        self.reference = {"*": {"short_high": limit, "long_high": limit}}

    @performance_function("near/net")
    def short(self) -> float:
        """Return the ratio of the times of a short message."""
        return self._ratio(SHORT, "value")

    @performance_function("near/net")
    def short_high(self) -> float:
        """Return the upper end of its 95 % interval."""
        return self._ratio(SHORT, "high")

    @performance_function("near/net")
    def long(self) -> float:
        """Return the ratio of the times of a long message."""
        return self._ratio(LONG, "value")

    @performance_function("near/net")
    def long_high(self) -> float:
        """Return the upper end of its 95 % interval."""
        return self._ratio(LONG, "high")
