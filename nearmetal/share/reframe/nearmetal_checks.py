# SPDX-License-Identifier: Apache-2.0
"""Checks of a cluster for ReFrame 4: the channels between its nodes, and a ping-pong.

The cluster must be up. docs/howto-reframe.md shows how a site runs them.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import reframe as rfm
from reframe.core.builtins import run_before, sanity_function, variable
from reframe.core.exceptions import SanityError
from reframe.utility.sanity import make_performance_function

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


def _require(condition: object, why: str) -> None:
    """Raise SanityError; ReFrame's own assertions would take a brace in a reason for a format."""
    if not condition:
        raise SanityError(why)


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
        self.executable_opts = [shlex.join(["locality", self.target, "--json"]), ">locality.json"]

    @sanity_function
    def every_pair_is_as_expected(self) -> bool:
        """Refuse a pair of two nodes that has another channel, with the reason of nearmetal."""
        expected = self.channels.split(",")
        found = _read(self.stage / "locality.json").get("pairs", [])
        pairs = [pair for pair in found if pair["node"] != pair["peer"]]
        _require(pairs, "the cluster has only one node")
        for pair in pairs:
            way = f"{pair['node']} to {pair['peer']}: {pair['channel']} ({pair['reason']})"
            _require(pair["channel"] in expected, f"{way}, expected {self.channels}")
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
            count = arms.count(arm)
            _require(count == self.launches, f"{count} launches of {arm}, not {self.launches}")
        for launch in made:
            where, code = f"launch {launch['number']} ({launch['arm']})", launch["exit_code"]
            _require(code == 0, f"{where} ended with {code}")
            log = (self.stage / "launches" / launch["stdout"]).read_text(errors="replace")
            verified = re.search(r"^# verified pingpong sizes [1-9]", log, re.MULTILINE)
            _require(verified, f"{where}: its log has no line of verified sizes")
            proof = launch["proof"]
            _require(proof["verdict"] == "proven", f"{where}: {proof['reason']}")
            used = {name for name, count in proof["messages"].items() if count} - {"self"}
            allowed = {"shm", "segment"} if launch["arm"] == "near" else {"net"}
            _require(used and used <= allowed, f"{where} used {sorted(used)}")
        # ReFrame leaves out performance variables without a value, and the check would pass.
        for size in (SHORT, LONG):
            one = self._comparison(size)
            interval = one["ratio"] and one["ratio"]["high"]
            _require(interval, f"{size} bytes: {one['verdict']}: {one['reason']}")
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
        """Give each ratio and the upper end of its interval; the end has a limit."""
        unit, limits = "near/net", {}
        for name, size in (("short", SHORT), ("long", LONG)):
            for key, part in ((name, "value"), (f"{name}_high", "high")):
                ratio = make_performance_function(self._ratio, unit, size, part)
                self.perf_variables[key] = ratio
            limits[f"{name}_high"] = (self.most_ratio, None, 0.0, unit)
        self.reference = {"*": limits}
