# SPDX-License-Identifier: Apache-2.0
"""Hosts leave Slurm before they reboot, and come back by whom they were drained."""

from pathlib import Path

import pytest

from nearmetal.core.errors import HostError
from nearmetal.core.process import Command, Completed, LocalRunner
from nearmetal.host.apply import Applier, LinuxSteps, Patience
from nearmetal.host.hosts_file import parse_hosts
from nearmetal.host.model import PlatformFacts
from nearmetal.host.plan import Phase
from nearmetal.host.rollback import Rollback
from nearmetal.host.shell import Answer
from nearmetal.host.slurm import NodeState, SlurmTools, parse_node
from nearmetal.host.steps import SetBios, Stage, Step
from tests.python.provision_lab import LabReach
from tests.python.sriov_tree import Killed
from tests.python.test_host_apply import ONE, Rebooting, steps

FILE = ONE.replace("    kernel:", '    slurm: {node: "n-{host}", drain: DRAIN}\n    kernel:')
OURS = "nearmetal host: lab"

# As Slurm 22.05 prints it, in one line.
SHOWN = """\
NodeName=n-kvm1 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 CPUTot=1 CPULoad=1.03 \
AvailableFeatures=(null) Gres=(null) NodeAddr=n-kvm1 NodeHostName=n-kvm1 Version=22.05.8 \
RealMemory=1 State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Partitions=main \
BootTime=2024-01-01T00:00:00 SlurmdStartTime=2024-01-01T00:00:00 \
ExtSensorsJoules=n/s ExtSensorsWatts=0 Reason=nearmetal host: lab [root@2024-01-01T00:00:00]
"""


class Cluster(SlurmTools):
    """A controller that knows one node, on which jobs run for some looks more."""

    def __init__(self, host: Rebooting, running: int = 0) -> None:
        super().__init__()
        self.host = host
        self.running = running
        self.state = NodeState(drained=False, reason="")
        self.writes_when_drained = -1
        self.drains = self.resumes = 0

    def look(self, node: str) -> NodeState:
        assert node == "n-kvm1"
        return self.state

    def jobs(self, node: str) -> int:
        assert node == "n-kvm1"
        self.running = max(0, self.running - 1)
        return self.running

    def drain(self, node: str, reason: str) -> None:
        assert node == "n-kvm1"
        self.drains += 1
        self.writes_when_drained = self.host.writes
        self.state = NodeState(drained=True, reason=reason)

    def resume(self, node: str) -> None:
        assert node == "n-kvm1"
        self.resumes += 1
        self.state = NodeState(drained=False, reason="")


@pytest.fixture
def host(tmp_path: Path) -> Rebooting:
    return Rebooting(tmp_path / "kvm1").make()


def run(host: Rebooting, cluster: Cluster, state: Path, drain_s: int = 60) -> None:
    file = parse_hosts(FILE.replace("DRAIN", str(drain_s)))
    patience = Patience(reboot_s=20, look_s=0)
    Applier(file, LabReach({"kvm1": host}, cluster), state, patience).apply()


def test_it_is_drained_before_anything_is_written_and_resumed_when_it_is_ready(
    host: Rebooting, tmp_path: Path
) -> None:
    cluster = Cluster(host, running=4)
    run(host, cluster, tmp_path / "state")
    assert (cluster.drains, cluster.writes_when_drained, cluster.running) == (1, 0, 0)
    assert host.reboots == 1
    assert cluster.resumes == 1
    done = steps(tmp_path / "state", "done")
    assert done[0] == "kvm1: drain n-kvm1 in Slurm"
    assert done[-2:] == ["kvm1: reboot", "kvm1: resume n-kvm1 in Slurm"]


def test_jobs_that_do_not_end_keep_the_host_as_it_is(host: Rebooting, tmp_path: Path) -> None:
    cluster = Cluster(host, running=1 << 30)
    with pytest.raises(HostError, match="jobs still run on n-kvm1 after 0 s") as caught:
        run(host, cluster, tmp_path / "state", drain_s=0)
    assert "slurm.drain" in caught.value.hint
    assert (host.writes, host.reboots) == (0, 0)
    assert not cluster.state.drained


@pytest.mark.parametrize("ours", [False, True])
def test_machines_keep_the_host_as_it_is_and_in_service(
    host: Rebooting, tmp_path: Path, *, ours: bool
) -> None:
    cluster = Cluster(host)
    # By a run that died after it.
    cluster.state = NodeState(drained=ours, reason=OURS if ours else "")
    host.tree.put("proc/4711/comm", "qemu-system-x86")
    with pytest.raises(HostError, match="kvm1: 1 virtual machines run on it"):
        run(host, cluster, tmp_path / "state")
    assert (host.writes, host.reboots) == (0, 0)
    assert not cluster.state.drained
    assert steps(tmp_path / "state", "done")[-1] == "kvm1: resume n-kvm1 in Slurm"


def test_what_an_earlier_run_has_changed_stays_out_of_service(
    host: Rebooting, tmp_path: Path
) -> None:
    cluster = Cluster(host)
    host.kill_before = 3
    with pytest.raises(Killed):
        run(host, cluster, tmp_path / "state")
    assert host.writes > 0
    host.kill_before = 0
    host.tree.put("proc/4711/comm", "qemu-system-x86")
    with pytest.raises(HostError, match="kvm1: 1 virtual machines run on it"):
        run(host, cluster, tmp_path / "state")
    assert cluster.state == NodeState(drained=True, reason=OURS)


@pytest.mark.parametrize(
    ("words", "runs"), [("slurmstepd infinity ", False), ("slurmstepd: [7.0]", True)]
)
def test_what_slurmd_itself_keeps_is_no_job(
    host: Rebooting, tmp_path: Path, words: str, *, runs: bool
) -> None:
    cluster = Cluster(host)
    host.tree.put("proc/4711/comm", "slurmstepd")
    host.tree.put("proc/4711/cmdline", words.replace(" ", "\0"))
    if runs:
        with pytest.raises(HostError, match="jobs of Slurm run on it"):
            run(host, cluster, tmp_path / "state")
    else:
        run(host, cluster, tmp_path / "state")
    assert host.reboots == (not runs)


class Interrupted(Cluster):
    """A cluster that is asked for its jobs when Ctrl-C comes."""

    applier: Applier

    def jobs(self, node: str) -> int:
        self.applier._stop.set()
        return super().jobs(node) or 1


def test_who_interrupts_the_wait_leaves_the_host_in_service(
    host: Rebooting, tmp_path: Path
) -> None:
    cluster = Interrupted(host)
    file = parse_hosts(FILE.replace("DRAIN", "60"))
    cluster.applier = Applier(file, LabReach({"kvm1": host}, cluster), tmp_path / "state")
    with pytest.raises(HostError, match="interrupted"):
        cluster.applier.apply()
    assert not cluster.state.drained
    assert host.writes == 0


def test_machines_on_a_host_that_somebody_else_drained_change_nothing_of_that(
    host: Rebooting, tmp_path: Path
) -> None:
    cluster = Cluster(host)
    cluster.state = NodeState(drained=True, reason="broken fan")
    host.tree.put("proc/4711/comm", "qemu-system-x86")
    with pytest.raises(HostError, match="kvm1: 1 virtual machines run on it"):
        run(host, cluster, tmp_path / "state")
    assert (cluster.drains, cluster.resumes) == (0, 0)


def test_a_host_without_a_bmc_is_not_drained_for_its_bios(host: Rebooting, tmp_path: Path) -> None:
    cluster = Cluster(host)
    text = FILE.replace("DRAIN", "60")
    [(name, group)] = parse_hosts(text).each()
    bios = Step(Stage.BIOS, "bios x", "x", SetBios("x", "1", "0"), "at boot")
    run_ = Applier(parse_hosts(text), LabReach({"kvm1": host}, cluster), tmp_path / "state")
    with pytest.raises(HostError, match="it has no BMC"):
        run_._phase(name, group, LinuxSteps(host), PlatformFacts("kvm1", "linux"), Phase((bios,)))
    assert (cluster.drains, host.writes) == (0, 0)


def test_what_somebody_else_drained_stays_drained(host: Rebooting, tmp_path: Path) -> None:
    cluster = Cluster(host)
    cluster.state = NodeState(drained=True, reason="broken fan")
    run(host, cluster, tmp_path / "state")
    assert host.reboots == 1
    assert cluster.state == NodeState(drained=True, reason="broken fan")
    assert (cluster.drains, cluster.resumes) == (0, 0)


def test_a_run_that_died_after_the_drain_is_taken_up_and_resumes(
    host: Rebooting, tmp_path: Path
) -> None:
    cluster = Cluster(host)
    host.kill_before = 3
    with pytest.raises(Killed):
        run(host, cluster, tmp_path / "state")
    assert cluster.state == NodeState(drained=True, reason=OURS)
    host.kill_before = 0
    run(host, cluster, tmp_path / "state")
    assert (cluster.drains, cluster.resumes) == (1, 1)


def test_a_run_that_died_before_the_resume_resumes_next_time(
    host: Rebooting, tmp_path: Path
) -> None:
    cluster = Cluster(host)
    run(host, cluster, tmp_path / "state")
    cluster.state = NodeState(drained=True, reason=OURS)
    run(host, cluster, tmp_path / "state")
    assert not cluster.state.drained


def test_a_run_that_died_between_the_drain_and_the_first_step_is_taken_back(
    host: Rebooting, tmp_path: Path
) -> None:
    cluster = Cluster(host)
    cluster.state = NodeState(drained=True, reason=OURS)
    file = parse_hosts(FILE.replace("DRAIN", "60"))
    Rollback(file, LabReach({"kvm1": host}, cluster), tmp_path / "state", Patience()).apply()
    assert not cluster.state.drained
    assert (host.writes, host.reboots) == (0, 0)


class Starting(Rebooting):
    """A host on which somebody starts a machine after the first step."""

    def script(self, text: str, *, timeout_s: float) -> Answer:
        answer = super().script(text, timeout_s=timeout_s)
        if self.writes:
            self.tree.put("proc/4711/comm", "qemu-system-x86")
        return answer


def test_a_machine_that_was_started_meanwhile_is_not_rebooted(tmp_path: Path) -> None:
    host = Starting(tmp_path / "kvm1")
    host.make()
    cluster = Cluster(host)
    with pytest.raises(HostError, match="1 virtual machines run on it"):
        run(host, cluster, tmp_path / "state")
    assert host.writes > 0
    assert "kvm1: reboot" not in steps(tmp_path / "state", "begin")
    # Something of it is changed: what jobs would find there is not what they ask for.
    assert cluster.state == NodeState(drained=True, reason=OURS)


def test_a_host_that_fails_its_checks_stays_drained(host: Rebooting, tmp_path: Path) -> None:
    cluster = Cluster(host)
    host.comes_back = False
    with pytest.raises(HostError, match="did not come back"):
        Applier(
            parse_hosts(FILE.replace("DRAIN", "60")),
            LabReach({"kvm1": host}, cluster),
            tmp_path / "state",
            Patience(reboot_s=0, look_s=0),
        ).apply()
    assert cluster.state == NodeState(drained=True, reason=OURS)


def test_what_needs_no_reboot_drains_nothing(host: Rebooting, tmp_path: Path) -> None:
    cluster = Cluster(host)
    run(host, cluster, tmp_path / "state")
    (host.root / "sys/bus/pci/devices/0000:3b:00.1/sriov_numvfs").write_text("0\n")
    run(host, cluster, tmp_path / "state")
    assert host.vfs() == ["4", "2"]
    assert cluster.drains == 1


def test_jobs_on_a_host_that_the_file_does_not_call_a_node_are_refused(
    host: Rebooting, tmp_path: Path
) -> None:
    host.tree.put("proc/4711/comm", "slurmstepd")
    with pytest.raises(HostError, match="kvm1: jobs of Slurm run on it") as caught:
        Applier(parse_hosts(ONE), LabReach({"kvm1": host}), tmp_path / "state").apply()
    assert "slurm:" in caught.value.hint
    assert host.writes == 0


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (SHOWN, NodeState(drained=True, reason=OURS)),
        (SHOWN.replace("IDLE+DRAIN", "MIXED+DRAIN*"), NodeState(drained=True, reason=OURS)),
        (
            SHOWN.replace("IDLE+DRAIN", "DOWN*+DRAIN+REBOOT_ISSUED").replace(" lab [", " b [x] ["),
            NodeState(drained=True, reason="nearmetal host: b [x]"),
        ),
        ("NodeName=n State=IDLE*\n", NodeState(drained=False, reason="")),
    ],
)
def test_the_state_of_a_node_is_read(text: str, state: NodeState) -> None:
    assert parse_node(text) == state


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(HostError, match="has no state"):
        parse_node("StateComplete=x\n")


class Tools(LocalRunner):
    """Answers as told, and remembers what was asked."""

    def __init__(self, code: int, text: str, *, late: bool = False) -> None:
        self.answer = (code, text.encode(), late)
        self.asked: list[tuple[str, ...]] = []

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        self.asked.append(command.argv)
        assert command.env is not None
        assert not any(name.startswith("SQUEUE_") for name in command.env)
        code, text, late = self.answer
        return Completed(command, code, text, b"", timeout_s, late)


def test_the_tools_are_asked_in_their_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    tools = Tools(0, "4711\n4712\n")
    slurm = SlurmTools(tools)
    assert slurm.jobs("n1") == 2
    slurm.drain("n1", OURS)
    slurm.resume("n1")
    assert tools.asked == [
        ("squeue", "-a", "-h", "-o", "%A", "-w", "n1"),
        ("scontrol", "update", "nodename=n1", "state=drain", "reason=nearmetal host: lab"),
        ("scontrol", "update", "nodename=n1", "state=resume"),
    ]


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (Tools(1, "slurm_update error: Invalid node name specified\n"), "Invalid node name"),
        (Tools(-15, "", late=True), "no answer"),
    ],
)
def test_a_controller_that_does_not_answer_is_named(tools: Tools, said: str) -> None:
    with pytest.raises(HostError, match=f"Slurm: scontrol: .*{said}"):
        SlurmTools(tools).resume("n1")
