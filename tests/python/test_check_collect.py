# SPDX-License-Identifier: Apache-2.0
"""Collection: several nodes at a time, silent ones as findings; and the verbs on this machine."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from nearmetal.check.collect import agent_argv, collect, here, over_ssh
from nearmetal.check.collection import Collection, open_collection
from nearmetal.cli.main import main
from nearmetal.core.errors import CommandError
from nearmetal.core.process import Command, Completed, LocalRunner, Runner
from nearmetal.core.progress import Silent
from nearmetal.core.resources import share
from tests.python.check_nodes import content_of, facts_of, judged, only


class Answers:
    """A runner whose nodes answer as the test says; it counts how many run at a time."""

    def __init__(self, answers: dict[str, Any], seconds: float = 0.0) -> None:
        self._answers, self._seconds = answers, seconds
        self._lock, self._now = threading.Lock(), 0
        self.most = 0
        self.inputs: set[bytes] = set()

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            self.inputs.add(command.stdin)
        time.sleep(self._seconds)
        with self._lock:
            self._now -= 1
        answer = self._answers[command.argv[0]]
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            return Completed(command, -9, b"", b"", timeout_s, timed_out=True)
        code, out, err = answer
        return Completed(command, code, out, err, 0.1)


def gathered(answers: dict[str, Any], **options: Any) -> Any:
    runner = Answers(answers, options.pop("seconds", 0.0))
    targets = {name: Command((name,)) for name in answers}
    found = collect(targets, cast(Runner, runner), progress=Silent(), **options)
    return found, runner


GOOD = (0, content_of(facts_of(1)), b"")


def test_each_way_to_be_silent_has_its_reason() -> None:
    found, runner = gathered(
        {
            "good": GOOD,
            "late": None,
            "bare": (127, b"", b""),
            "gone": (255, b"", b"ssh: connect to host gone port 22: No route to host\n"),
            "broken": (1, b"", b"Traceback\nMemoryError\x1b[31m\n"),
            "chatty": (0, b"Welcome!\n" + GOOD[1], b""),
            "endless": CommandError("more than 1048576 bytes of output: ssh endless"),
        }
    )
    assert list(found.contents) == ["good"]
    assert {name: why.partition("|")[0] for name, why in found.silent.items()} == {
        "late": "no answer in 60 s",
        "bare": "it has no python3",
        "gone": "ssh: connect to host gone port 22: No route to host",
        "broken": "the agent failed: MemoryError\\x1b[31m",
        "chatty": "chatty:1: not valid JSON: Expecting value: line 1 column 1 (char 0)",
        "endless": "more than 1048576 bytes of output: ssh endless",
    }
    assert runner.inputs == {share("check", "agent.py").read_bytes()}
    silent = judged(found.snapshots(), silent=found.silent).findings
    assert {name for f in silent if f.check == "base.answer" for name in f.nodes} == set(
        found.silent
    )


def test_nodes_are_asked_side_by_side_up_to_the_limit() -> None:
    _, runner = gathered({f"n{i}": GOOD for i in range(24)}, at_once=8, seconds=0.1)
    assert 2 < runner.most <= 8


def test_ssh_asks_nothing_and_goes_to_the_named_host() -> None:
    command = over_ssh(["node-1"], "probe")["node-1"]
    assert ("-o", "BatchMode=yes") in zip(command.argv, command.argv[1:], strict=False)
    assert command.argv[-3:-1] == ("--", "node-1")
    assert ("-l", "probe") in zip(command.argv, command.argv[1:], strict=False)
    # What ssh hands to the login shell there is the same command as elsewhere.
    shell = Command(("sh", "-c", command.argv[-1]))
    found = collect({"n": shell}, LocalRunner(), progress=Silent())
    assert not found.silent
    assert found.snapshots()[0].text("system", "hostname") == os.uname().nodename


def test_a_node_whose_clock_is_five_seconds_ahead_is_found(tmp_path: Path) -> None:
    wrapper = tmp_path / "python3"
    wrapper.write_text(
        "#!/bin/sh\nexec /usr/bin/python3 -I -B -c 'import sys, time\n"
        "real = time.time\ntime.time = lambda: real() + 5\n"
        'exec(compile(sys.stdin.read(), "agent", "exec"))\' "$@"\n'
    )
    wrapper.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    targets = {"right": here("right")["right"], "fast": Command(tuple(agent_argv()), env=env)}
    found = collect(targets, LocalRunner(), progress=Silent())
    assert not found.silent
    profile = "name: clock\nchecks: [base.clock]\n"
    finding = only(judged(found.snapshots(), profile))
    assert (finding.folded, finding.check) == ("fast", "base.clock")
    assert finding.value.endswith("s ahead")


def test_more_nodes_at_once_than_files_are_refused_before_any_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    words = ["check", "collect", "--hosts", "n[1-900]", "--output", str(tmp_path / "c")]
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        assert main([*words, "--at-once", "800"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    error = capsys.readouterr().err
    assert "--at-once 800: this process may open only 1024 files" in error
    assert "ulimit -n 7264" in error


def test_a_collection_names_each_snapshot_by_its_content(tmp_path: Path) -> None:
    found, _ = gathered({"a": GOOD, "b": GOOD, "c": None})
    found.write(tmp_path / "tuesday")
    read = open_collection(tmp_path / "tuesday")
    assert isinstance(read, Collection)
    assert [s.name for s in read.snapshots()] == ["a", "b"]
    assert read.silent == {"c": "no answer in 60 s"}
    # Equal contents are one file.
    assert len(list((tmp_path / "tuesday").iterdir())) == 2


def test_the_verbs_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert main(["check", "collect", "--output", one]) == 0
    assert "1 snapshots" in capsys.readouterr().out
    assert main(["check", "collect", "--output", one]) == 2
    capsys.readouterr()
    report, metrics = tmp_path / "r.xml", tmp_path / "m.prom"
    words = ["check", "analyse", one, "--json", "--profile", "health_base"]
    code = main([*words, "--junit", str(report), "--prometheus", str(metrics)])
    data = json.loads(capsys.readouterr().out)
    assert code == (4 if any(f["severity"] == "fault" for f in data["findings"]) else 0)
    assert data["nodes"] == [os.uname().nodename]
    assert report.read_text().startswith("<?xml")
    assert "nearmetal_check_nodes 1" in metrics.read_text()
    main(["check", "--output", two, "--fail-at", "note"])
    capsys.readouterr()
    main(["check", "diff", one, two, "--json"])
    assert "changes" in json.loads(capsys.readouterr().out)
    assert main(["check", "--list", "--profile", "health_base"]) == 0
    assert "base.clock" in capsys.readouterr().out


def test_a_report_may_lie_in_the_directory_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    words = ["check", "--profile", "health_base", "--output", str(folder)]
    assert main([*words, "--junit", str(folder / "r.xml")]) in (0, 4)
    assert (folder / "r.xml").read_text().startswith("<?xml")
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["check", "x.yaml", "--hosts", "n1"], "contradict each other"),
        (["check", "--slurm", "--hosts", "n1"], "contradict each other"),
        (["check", "x.yaml", "--slurm"], "contradict each other"),
        (["check", "--user", "me"], "--user is for the logins of --hosts"),
        (["check", "x.yaml", "--user", "me"], "--user is for the logins of --hosts"),
        (["check", "--slurm", "--user", "me"], "--user is for the logins of --hosts"),
        (["check", "--drain", "--user", "me"], "--user is for the logins of --hosts"),
        (["check", "performance", "x.yaml", "--user", "me"], "--user is for the logins of --hosts"),
        (["check", "--slurm"], "--slurm: this is no job of Slurm"),
        (["check", "--drain", "--slurm"], "--drain is for this machine"),
        (["check", "--hosts", "n[1-"], "is not a set of nodes"),
        (["check", "--hosts", "n[1-99999999]"], "names more than 20000 nodes"),
        (["check", "--at-once", "0"], "--at-once 0: more than 0"),
        (["check", "--timeout", "0"], "--timeout: '0' is not a number of seconds from 2 to 3600"),
        (
            ["check", "--timeout", "inf"],
            "--timeout: 'inf' is not a number of seconds from 2 to 3600",
        ),
        (
            ["check", "--timeout", "nan"],
            "--timeout: 'nan' is not a number of seconds from 2 to 3600",
        ),
        (
            ["check", "--timeout", "1e300"],
            "--timeout: '1e300' is not a number of seconds from 2 to 3600",
        ),
        (
            ["check", "--drain", "--timeout", "0.1"],
            "--timeout: '0.1' is not a number of seconds from 2 to 3600",
        ),
        (["check", "--profile", "nowhere"], "no profile 'nowhere'"),
        (["check", "--drain", "--hosts", "n1"], "--drain is for this machine"),
        (["check", "collect"], "required: --output"),
        (["check", "collect", "--output", "no/where"], "no is no directory"),
        (["check", "--output", "no/where"], "no is no directory"),
        (["check", "--junit", "no/where.xml"], "no is no directory"),
        (["check", "analyse", "none", "--prometheus", "no/where.prom"], "no is no directory"),
        (["check", "performance", "none", "--junit", "no/where.xml"], "no is no directory"),
    ],
)
def test_wrong_usage(
    words: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert main(words) == 2
    assert problem in capsys.readouterr().err


SCRIPT = '#!/bin/sh\necho "$(basename $0) $*" >>"$(dirname $0)/calls"\n[ $(basename $0) = scontrol ] || echo idle\n'


def test_slurm_drains_the_node_with_the_words_of_the_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("sinfo", "scontrol"):
        (tmp_path / name).write_text(SCRIPT)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURMD_NODENAME", "c7")
    site = tmp_path / "site.yaml"
    site.write_text("name: site\nchecks: [base.services]\nexpect: {services: [opensm]}\n")
    assert main(["check", "--drain", "--profile", str(site)]) == 4
    assert "opensm: the profile names this daemon" in capsys.readouterr().out
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[-1] == (
        "scontrol update NodeName=c7 State=DRAIN "
        "Reason=nearmetal: base.services opensm: not running"
    )
    (tmp_path / "calls").unlink()
    site.write_text("name: site\nchecks: [nearmetal.shared]\n")
    assert main(["check", "--drain", "--profile", str(site)]) == 0
    assert not (tmp_path / "calls").exists()


SRUN = """\
#!/bin/sh
case "$*" in *--nodelist=n3*) echo "srun: error: Node n3 is down" >&2; exit 1;; esac
env | grep ^SLURM_ >"$(dirname $0)/env"
echo "$*" >>"$(dirname $0)/calls"
while [ "$1" != -- ]; do shift; done; shift; exec "$@"
"""


def test_the_nodes_of_a_job_are_asked_by_steps_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/sh\nprintf 'n1\\nn2\\nn3\\n'\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    # As an option of srun, this one would break the snapshot.
    given = {"JOB_ID": "77", "JOB_NODELIST": "n[1-3]", "LABELIO": "1", "CONF": "/etc/x"}
    for name, value in given.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert main(["check", "collect", "--slurm", "--output", str(tmp_path / "c"), "--json"]) == 4
    result = json.loads(capsys.readouterr().out)
    assert result["nodes"] == ["n1", "n2"]
    assert result["silent"] == {"n3": "srun: error: Node n3 is down"}
    assert (tmp_path / "env").read_text() == "SLURM_CONF=/etc/x\n"
    for call in (tmp_path / "calls").read_text().splitlines():
        assert call.startswith("--jobid=77 --quiet --overlap --nodes=1 --ntasks=1 "), call
        assert "--time=3 --nodelist=n" in call


def test_a_quick_check_of_this_machine_takes_the_python_that_runs() -> None:
    command = here("n", quick=True)["n"]
    assert command.argv[:4] == (sys.executable, "-I", "-S", "-B")
    (found,) = collect({"n": command}, LocalRunner(), progress=Silent()).snapshots()
    assert found.quick
    assert here("n")["n"].argv[0] == "sh"


LOADED = """\
import sys
from nearmetal.cli.main import main
main(["check", "--drain", "--profile", sys.argv[1]])
print(*sorted({"pydantic", "statistics", "asyncio", "nearmetal.cluster"} & set(sys.modules)))
"""


def test_a_quick_check_loads_no_large_modules(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("name: site\nchecks: [base.kernel]\n")
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(site)],
        capture_output=True,
        check=True,
        cwd=Path(__file__).parents[2],
        text=True,
        timeout=120,
    )
    assert done.stdout == "\n"
