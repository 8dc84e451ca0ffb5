# SPDX-License-Identifier: Apache-2.0
"""VFs of another machine: its own ledger, answers that are checked, and errors with a fix."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.cli.host import answer_about_vfs
from nearmetal.cluster.backends.libvirt.hosts import HostShell
from nearmetal.cluster.backends.libvirt.vfs import vfs_of
from nearmetal.core.errors import HostError
from nearmetal.host.vf import Ledger, Owner, VfHost, Wish
from nearmetal.host.vf.distant import DistantVfHost, VfQuestion, answer
from nearmetal.host.vf.model import INFINIBAND
from nearmetal.host.vf.request import VfRequest
from tests.python.distant import another, completed
from tests.python.sriov_tree import FakeKernel, Killed, Tree, tree_of_two_vfs

if TYPE_CHECKING:
    from nearmetal.core.process import Command, Completed


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return tree_of_two_vfs(tmp_path / "root")


def host(tree: Tree, kill_at: int = 0) -> VfHost:
    ledger = Ledger(tree.root.parent / "ledger")
    return VfHost(FakeKernel(tree, kill_at), ledger, privileged=True)


def owner(node: str) -> Owner:
    return Owner(kind="cluster", name="c", node=node, state="/state/c")


def test_another_machine_offers_gives_and_takes_back_its_vfs(tree: Tree) -> None:
    before, there = tree.dump(), another(host(tree))
    wishes = [Wish(owner(node), VfRequest(vlan=7)) for node in "abc"]
    assert there.offers(wishes) == host(tree).offers(wishes)
    assert [bool(offer.problem) for offer in there.offers(wishes)] == [False, False, True]
    assert tree.dump() == before
    granted = there.allocate(VfRequest(vlan=7), owner("a"))
    assert granted.settings.vlan == 7
    assert there.allocate(VfRequest(vlan=7), owner("a")).address == granted.address
    assert host(tree).ledger.read().owners() == {granted.address: "node a of cluster c"}
    there.release(owner("a"))
    there.release(owner("a"))
    assert tree.dump() == before


def test_a_vf_that_a_node_has_is_offered_again_and_no_other_adapter(tree: Tree) -> None:
    tree.pf("0000:02:00.0", "ens2", total=7)
    host(tree).allocate(VfRequest(pf="ens1"), owner("a"))
    (offer,) = host(tree).offers([Wish(owner("a"), VfRequest())])
    assert offer.pf == "0000:01:00.0"
    (other,) = host(tree).offers([Wish(owner("a"), VfRequest(pf="ens2"))])
    assert other.pf == "0000:02:00.0"


def test_a_held_vf_is_offered_whatever_became_of_its_link_and_to_nobody_else(tree: Tree) -> None:
    """As `allocate` answers: a cable that was pulled takes no VF away, and `drain` is asked then."""
    tree.pf("0000:02:00.0", "ens2", total=2)
    for node in "ab":
        host(tree).allocate(VfRequest(pf="ens1"), owner(node))
    wishes = [Wish(owner(node), VfRequest()) for node in "cab"]
    assert [offer.pf[5:7] for offer in host(tree).offers(wishes)] == ["02", "01", "01"]
    state = tree.load()
    state["links"]["ens1"]["cable"] = False
    tree.save(state)
    assert [offer.pf[5:7] for offer in host(tree).offers(wishes)] == ["02", "01", "01"]
    assert host(tree).survey(wishes[1:2])[0].reasons == ("the owner already has it",)
    held = host(tree).ledger.read().of(owner("a"))
    assert held is not None
    assert host(tree).allocate(VfRequest(), owner("a")).address == held.vf


def test_the_fabric_is_the_link_and_on_infiniband_the_subnet(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root").make()
    tree.pf(name="ib0", kind=INFINIBAND, driver="mlx5_core", rdma="mlx5_0")
    gids = tree.root / "sys/class/infiniband/mlx5_0/ports/1/gids"
    wish = Wish(owner("a"), VfRequest())
    assert host(tree).offers([wish])[0].fabric == "InfiniBand"
    gids.mkdir()
    (gids / "0").write_text("fe80:0000:0000:0001:0002:c903:00e8:ce91\n")
    assert host(tree).offers([wish])[0].fabric == "InfiniBand fe80:0000:0000:0001"


def test_its_error_names_the_host_and_keeps_the_fix(tree: Tree) -> None:
    with pytest.raises(HostError, match="host h2: this machine has no adapter 'ens9'") as failed:
        another(host(tree)).allocate(VfRequest(pf="ens9"), owner("a"))
    assert failed.value.hint == "it has: ens1"


def says(text: bytes, code: int = 0, err: bytes = b"") -> DistantVfHost:
    return DistantVfHost("h2", lambda argv, _: completed(argv, code, text, err))


GRANTED = {
    "address": "0000:01:10.0",
    "number": 0,
    "pf": "ens1",
    "group": 3,
    "numa": 0,
    "settings": {"mac": "02:00:00:00:00:01"},
    "reasons": [],
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"address": "x' --evil"}, "granted"),
        ({"group": -1}, "granted"),
        ({"group": "../../sda"}, "granted"),
        ({"settings": {"mac": "02:00:00:00:00:01' up"}}, "mac"),
        ({"numa": None}, "numa"),
    ],
)
def test_an_answer_that_no_machine_gives_is_refused(change: dict[str, Any], words: str) -> None:
    def there(granted: dict[str, Any]) -> DistantVfHost:
        return says(json.dumps({"version": 1, "granted": granted}).encode())

    assert there(GRANTED).allocate(VfRequest(), owner("a")).group == 3
    with pytest.raises(HostError, match=f"is not understood: .*{words}"):
        there(GRANTED | change).allocate(VfRequest(), owner("a"))


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{", b'{"version": 2}', b'{"version": 1, "more": 1}', b" " * ((1 << 20) + 1)],
)
def test_bytes_that_are_no_answer_are_refused(text: bytes) -> None:
    with pytest.raises(HostError, match="is not understood") as failed:
        says(text).release(owner("a"))
    assert "same release" in failed.value.hint


def test_an_answer_without_its_content_is_refused() -> None:
    with pytest.raises(HostError, match="it names no VF"):
        says(b'{"version": 1}').allocate(VfRequest(), owner("a"))
    with pytest.raises(HostError, match="another number of offers"):
        says(b'{"version": 1}').offers([Wish(owner("a"), VfRequest())])


def test_words_of_another_machine_do_not_reach_the_terminal_as_they_are() -> None:
    granted = GRANTED | {"reasons": ["\x1b[2Jgone"], "pf": "e\x07"}
    there = says(json.dumps({"granted": granted}).encode())
    found = there.allocate(VfRequest(), owner("a"))
    assert (found.reasons, found.pf) == (("\\x1b[2Jgone",), "e\\x07")
    with pytest.raises(HostError) as failed:
        says(b'{"error": "\\u001b[2J", "hint": "\\u0007"}').release(owner("a"))
    assert "\x1b" not in failed.value.message + failed.value.hint


def test_a_machine_without_nearmetal_and_one_that_fails_are_named() -> None:
    with pytest.raises(HostError, match="nearmetal there, which is not in the path"):
        says(b"", 127, b"sh: nearmetal: not found").release(owner("a"))
    with pytest.raises(HostError, match=r"fails: ssh: no route$"):
        says(b"", 255, b"ssh: no route").release(owner("a"))


def test_a_machine_that_does_not_answer_in_time_is_named_with_the_time() -> None:
    late = replace(completed(["ssh"], -15), timed_out=True, seconds=420.1)
    with pytest.raises(HostError, match=r"host h2: no answer of `nearmetal .*` in 420 s$"):
        DistantVfHost("h2", lambda *_: late).release(owner("a"))


def test_a_question_of_another_release_is_answered_with_an_error(tree: Tree) -> None:
    for text in (b"", b'{"version": 2}', b'{"version": 1, "action": "burn", "wishes": []}'):
        assert "does not know the question" in json.loads(answer(text, host(tree)))["error"]


def test_the_verb_answers_one_question(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    question = VfQuestion(action="offer", wishes=[Wish(owner("a"), VfRequest())])
    assert answer_about_vfs(host(tree), io.BytesIO(question.model_dump_json().encode())) == 0
    assert json.loads(capsys.readouterr().out)["offers"][0]["pf"] == "0000:01:00.0"


def test_a_host_that_ssh_reaches_is_asked_there_and_owns_by_its_own_directory(tree: Tree) -> None:
    asked: list[tuple[str, ...]] = []

    class Runner:
        def run(self, command: Command, *, timeout_s: float) -> Completed:
            assert timeout_s > 300
            asked.append(command.argv)
            return completed(command.argv, out=answer(command.stdin, host(tree)).encode())

    def vfs(uri: str) -> Any:
        shell = HostShell("h2", uri, Runner())  # type: ignore[arg-type]
        return vfs_of("c", shell, Path("/state/c"), "/there", host(tree))

    remote, local = vfs("qemu+ssh://root@h2/system"), vfs("qemu:///system")
    assert (remote.local, remote.owner("a").state) == (False, "/there")
    assert (local.local, local.owner("a").state) == (True, "/state/c")
    assert not remote.offers({"a": VfRequest()})["a"].problem
    assert asked[0][0] == "ssh"
    assert asked[0][-1] == "nearmetal host vf --serve"


def walk(tree: Tree, kill_at: int) -> bool:
    """Another machine dies at one of its changes; whether it came so far."""
    try:
        another(host(tree, kill_at)).allocate(VfRequest(vlan=7), owner("a"))
    except Killed:
        return True
    return False


def test_a_lost_answer_at_each_change_leaves_one_claim_that_is_completed(tree: Tree) -> None:
    before, at = tree.dump(), 1
    while walk(tree, at):
        claims = host(tree).ledger.read().claims
        assert len(claims) <= 1
        there = another(host(tree))
        granted = there.allocate(VfRequest(vlan=7), owner("a"))
        assert set(host(tree).ledger.read().claims) == {granted.address}
        there.release(owner("a"))
        assert tree.dump() == before
        at += 1
    assert at > 5
