# SPDX-License-Identifier: Apache-2.0
"""What nodes and programs answer is bounded while it is read, and no word of a spec is an option."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

from nearmetal.cluster.spec import parse_spec
from nearmetal.core.errors import CommandError, SpecError
from nearmetal.core.process import MAX_OUTPUT, Command, LocalRunner
from nearmetal.core.ssh import Login
from nearmetal.host.hosts_file import parse_hosts
from tests.python.test_process import assert_ends

RUNNER = LocalRunner()


def sh(script: str, *args: str, most: int = MAX_OUTPUT, stdin: bytes = b"") -> Command:
    return Command(("/bin/sh", "-c", script, "sh", *args), most=most, stdin=stdin)


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


@pytest.mark.parametrize("to", ["", ">&2"])
@pytest.mark.parametrize("together", [False, True])
def test_an_answer_without_end_ends_the_command(tmp_path: Path, to: str, together: bool) -> None:
    note, before = tmp_path / "pid", peak_mib()
    endless = sh(f"echo $$ >$1; exec cat /dev/zero {to}", str(note), most=1 << 20)
    commands = [sh("exec sleep 600"), endless] if together else [endless]
    with pytest.raises(CommandError, match="more than 1048576 bytes of output: /bin/sh") as caught:
        RUNNER.run_all(commands, timeout_s=120)
    assert "was ended" in caught.value.hint
    assert_ends(int(note.read_text()))
    assert peak_mib() - before < 64


def test_commands_have_a_bound_unless_they_name_another() -> None:
    assert Command(("true",)).most == MAX_OUTPUT
    head = "head -c $1 /dev/zero"
    assert len(RUNNER.run(sh(head, "1000", most=1000), timeout_s=60).stdout) == 1000
    with pytest.raises(CommandError, match="more than 999 bytes"):
        RUNNER.run(sh(head, "1000", most=999), timeout_s=60)


def test_a_line_without_end_ends_a_dialogue() -> None:
    talk = RUNNER.converse(Command(("cat", "/dev/zero")))
    with pytest.raises(CommandError, match="a line without an end"):
        talk.receive(120)
    assert talk.finish(0.1) in (-signal.SIGTERM, -signal.SIGPIPE, 1)


def test_large_input_and_output_pass_at_the_same_time() -> None:
    content = os.urandom(1 << 20) * 3
    one, two = RUNNER.run_all([sh("tee /dev/stderr", stdin=content)] * 2, timeout_s=120)
    assert one.stdout == one.stderr == two.stdout == two.stderr == content


def test_a_command_may_leave_its_input_unread() -> None:
    done = RUNNER.run(sh("exec <&-; echo on", stdin=b"x" * (1 << 20)), timeout_s=60)
    assert (done.text, done.code) == ("on\n", 0)


def test_a_daemon_that_keeps_the_output_open_is_not_awaited(tmp_path: Path) -> None:
    note, begin = tmp_path / "pid", time.monotonic()
    script = f"{sys.executable} -c 'import os, time; os.setsid(); time.sleep(600)' & echo $! >$1; echo on"
    done = RUNNER.run(sh(script, str(note)), timeout_s=500)
    assert (done.text, done.code, done.timed_out) == ("on\n", 0, False)
    assert time.monotonic() - begin < 400
    os.kill(int(note.read_text()), signal.SIGKILL)


def test_a_late_command_keeps_its_words() -> None:
    done = RUNNER.run(sh("echo on; exec sleep 600"), timeout_s=5)
    assert (done.timed_out, done.text) == (True, "on\n")


# Words of specs

LIBVIRT = """\
version: 1
name: c
backend: libvirt
network: {{bridge: br0}}
hosts:
  - name: h
    uri: "{}"
    nodes: [{{name: n, vf: {{pf: "{}"}}}}]
"""
HOSTS = """\
version: 1
name: h
hosts:
  - nodes: {nodes}
    platform: linux
    bmc: {{address: "{bmc}"}}
    ssh: {{user: "{user}"}}
    slurm: {{node: "{slurm}"}}
    kernel: {{arguments: ["{argument}"]}}
"""
GOOD = {
    "nodes": "n[1-2]",
    "bmc": "https://b-{host}",
    "user": "root",
    "slurm": "n-{host}",
    "argument": "a=b",
}


@pytest.mark.parametrize(
    "uri",
    [
        "qemu+ssh://-F/tmp/x/system",
        "qemu+ssh://-oProxyCommand=x/system",
        "qemu+ssh://-lroot@h/system",
        "qemu+ssh://root@-h/system",
        "qemu+ssh://h:-1/system",
        "qemu+ssh://h:x/system",
        "qemu+ssh://root@h,x/system",
        "qemu+ssh://%2dF/system",
        "qemu+ssh://h/system?command=/tmp/evil",
        "qemu+ssh://h/system?netcat=/tmp/evil",
        "qemu+ssh://h/system?keyfile=-x",
        "qemu+ssh://h/system?mode=direct&command=x",
        "qemu+unix:///system?command=/tmp/evil",
    ],
)
def test_a_uri_is_no_option_and_names_no_program(uri: str) -> None:
    with pytest.raises(SpecError, match=r"hosts\[0\].uri"):
        parse_spec(LIBVIRT.format(uri, "auto"))


@pytest.mark.parametrize(
    "uri",
    [
        "qemu:///system",
        "qemu+unix:///system?socket=/run/x/libvirt-sock",
        "qemu+ssh://root@h-1.example.org:22/system",
        "qemu+ssh://[fe80::1]/system?keyfile=/etc/key&mode=direct",
    ],
)
def test_usual_uris_are_valid(uri: str) -> None:
    assert parse_spec(LIBVIRT.format(uri, "auto")).nodes


def test_an_adapter_is_no_option() -> None:
    with pytest.raises(SpecError, match="is not the name of an adapter"):
        parse_spec(LIBVIRT.format("qemu:///system", "--help"))


@pytest.mark.parametrize(
    ("key", "word", "why"),
    [
        ("nodes", '"-x"', "'-x' is not a host name"),
        ("bmc", "https://-x{host}", "is not the URL of a BMC"),
        ("user", "-x", "user '-x': is not valid"),
        ("slurm", "-x{host}", "is not a node name"),
        ("argument", "--remove-args=a", "is not a kernel argument"),
    ],
)
def test_no_word_of_a_hosts_file_is_an_option(key: str, word: str, why: str) -> None:
    assert parse_hosts(HOSTS.format(**GOOD)).hosts
    with pytest.raises(SpecError, match=why):
        parse_hosts(HOSTS.format(**(GOOD | {key: word})))


def test_ssh_takes_a_host_after_its_options() -> None:
    argv = Login("-oProxyCommand=x").argv("true")
    assert argv.index("--") < argv.index("-oProxyCommand=x")
