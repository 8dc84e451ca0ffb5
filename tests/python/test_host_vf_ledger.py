# SPDX-License-Identifier: Apache-2.0
"""The ledger of VFs: whole after any crash, and loud about what nearmetal never wrote."""

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from nearmetal.core.errors import LockedError, StateError
from nearmetal.host.vf.ledger import Book, Ledger, Owner, PfRecord, VfClaim
from nearmetal.host.vf.model import VfSettings
from nearmetal.host.vf.steps import PfBefore, VfBefore

OWNER = Owner(kind="cluster", name="demo", node="n1", state="/var/lib/nearmetal/clusters/demo")
PF = PfRecord(pf="0000:01:00.0", boot="b", before=PfBefore(0, up=False, autoprobe=True))
MAC = "02:00:00:00:00:01"
CLAIM = VfClaim(
    vf="0000:01:10.0",
    pf=PF.pf,
    owner=OWNER,
    since=1,
    boot="b",
    stage="held",
    before=VfBefore("igbvf", "", VfSettings(mac=MAC, trust=False)),
    wanted=VfSettings(vlan=7),
)


def full() -> Book:
    return Book({PF.pf: PF}, {CLAIM.vf: CLAIM})


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "host")
    with made.changing() as book:
        book.pfs[PF.pf], book.claims[CLAIM.vf] = PF, CLAIM
        made.save(book)
    return made


def test_what_is_saved_is_read(ledger: Ledger) -> None:
    with ledger.changing() as book:
        assert book == full()
    assert ledger.path.stat().st_mode & 0o777 == 0o600
    assert ledger.read().of(OWNER) == CLAIM
    assert ledger.read().owners() == {CLAIM.vf: "node n1 of cluster demo"}


def test_an_empty_ledger_leaves_nothing(ledger: Ledger) -> None:
    with ledger.changing() as book:
        book.claims.clear()
        book.pfs.clear()
        ledger.save(book)
    assert not ledger.directory.exists()
    assert ledger.read().empty


def lines(ledger: Ledger) -> list[str]:
    return ledger.path.read_text().splitlines()


def changed(text: str, path: str, value: Any) -> str:
    data = json.loads(text)
    place = data
    *parents, last = path.split(".")
    for key in parents:
        place = place[key]
    place[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("line", "path", "value"),
    [
        (2, "pf", "../../etc/passwd"),
        (2, "before.nr_vfs", "0"),
        (2, "record", "pv"),
        (3, "owner.kind", "anyone"),
        (3, "owner.state", "a b"),
        (3, "vf", "0000:01:10.0\n"),
        (3, "wanted.mac", "00:11"),
        (3, "before.settings.port_guid", "x"),
        (3, "stage", "lost"),
        (3, "surplus", 1),
    ],
)
def test_foreign_records_are_refused_with_file_and_line(
    ledger: Ledger, line: int, path: str, value: Any
) -> None:
    content = lines(ledger)
    content[line - 1] = changed(content[line - 1], path, value)
    ledger.path.write_text("\n".join(content) + "\n")
    with pytest.raises(StateError) as caught:
        ledger.read()
    assert caught.value.message.startswith(f"{ledger.path}:{line}: ")
    assert "rm" in caught.value.hint


@pytest.mark.parametrize("keep", range(1, 60, 7))
def test_a_file_cut_short_anywhere_is_refused(ledger: Ledger, keep: int) -> None:
    text = ledger.path.read_bytes()
    ledger.path.write_bytes(text[: len(text) * keep // 60])
    with pytest.raises(StateError, match=r"ledger.jsonl:[123]: "):
        ledger.read()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "1: not a ledger"),
        ("hello\n", "1: not a ledger"),
        ("\x00\xff\n", "1: not a ledger"),
        ("[" * 100000, "1: not a ledger"),
        ('{"ledger": "nearmetal", "version": 2, "records": 0}\n', "1: written by another release"),
        ('{"ledger": "nearmetal", "version": 1, "records": -1}\n', "1: the number of records"),
        ('{"ledger": "nearmetal", "version": 1, "records": 1}\n', "2: "),
        ('{"ledger": "nearmetal", "version": 1, "records": 0}\nmore\n', "cut short or mixed up"),
        ('{"ledger": "nearmetal", "version": 1, "records": 0}', "cut short or mixed up"),
    ],
)
def test_what_is_no_ledger_is_refused(ledger: Ledger, text: str, what: str) -> None:
    ledger.path.write_text(text)
    with pytest.raises(StateError, match=what):
        ledger.read()


def test_one_vf_twice_is_refused(ledger: Ledger) -> None:
    content = lines(ledger)
    content[1] = content[2]
    ledger.path.write_text("\n".join(content) + "\n")
    with pytest.raises(StateError, match="is recorded twice"):
        ledger.read()


def test_a_ledger_that_others_may_write_is_refused(ledger: Ledger) -> None:
    ledger.path.chmod(0o666)
    with pytest.raises(StateError, match="not yours alone"):
        ledger.read()
    ledger.path.unlink()
    ledger.path.symlink_to("/dev/zero")
    with pytest.raises(StateError, match="cannot read"):
        ledger.read()


def test_a_write_cut_short_leaves_the_old_one(ledger: Ledger) -> None:
    ledger.path.with_name("ledger.jsonl.new").write_text("half of someth")
    with ledger.changing() as book:
        assert book == full()
        ledger.save(book)
    assert ledger.read() == full()


def hold(directory: Path, held: Any, end: Any) -> None:
    with Ledger(directory).changing():
        held.set()
        end.wait(60)


def test_the_lock_is_for_one_and_dies_with_its_holder(ledger: Ledger) -> None:
    context = multiprocessing.get_context("fork")
    held, end = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(ledger.directory, held, end))
    holder.start()
    held.wait(60)
    with pytest.raises(LockedError, match=f"process {holder.pid},"), ledger.changing(0.1):
        pass
    assert ledger.read() == full()
    holder.kill()
    holder.join()
    with ledger.changing(30) as book:
        assert book == full()
