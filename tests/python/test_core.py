# SPDX-License-Identifier: Apache-2.0
"""Files that are whole, the lock, and the words of ssh: what every room uses."""

import multiprocessing
import os
import shlex
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from nearmetal.core.errors import LockedError
from nearmetal.core.files import (
    beside,
    move,
    new_directory,
    read_json,
    remove_file,
    replace_file,
    replacing,
)
from nearmetal.core.lock import locked
from nearmetal.core.ssh import NO_CONFIG, Login, own_keys, ssh_config


def test_only_a_regular_file_or_a_link_is_replaced(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(OSError, match="it is a FIFO, not a regular file"):
        replace_file(fifo, "new")
    assert stat.S_ISFIFO(fifo.lstat().st_mode)
    assert list(tmp_path.iterdir()) == [fifo]


def test_a_file_is_replaced_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    replace_file(path, "old", mode=0o644)
    assert path.stat().st_mode & 0o777 == 0o644
    beside(path).write_text("half of someth")
    replace_file(path, b"new", sync=False)
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("shared", [False, True])
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, shared: bool) -> None:
    path = tmp_path / "a"
    replace_file(path, "old")
    with pytest.raises(ValueError, match="closed"), replacing(path, shared=shared) as stream:
        stream.close()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_writers_of_a_shared_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with replacing(path, shared=True) as stream:
        stream.write(b"ours")
        replace_file(path, "theirs")
    assert path.read_text() == "ours"


def test_a_removed_file_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    replace_file(path, "old")
    beside(path).write_text("half of someth")
    remove_file(path)
    remove_file(path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a"
    beside(path).mkdir()
    (beside(path) / "left").touch()
    with new_directory(path, mode=0o755) as fresh:
        (fresh / "b").write_text("content")
        assert not path.exists()
    assert [entry.name for entry in path.iterdir()] == ["b"]
    assert path.stat().st_mode & 0o777 == 0o755
    with pytest.raises(OSError, match="not empty"), new_directory(path, tmp_path / "c") as fresh:
        (fresh / "b").touch()
    assert list(tmp_path.iterdir()) == [path]
    assert (path / "b").read_text() == "content"


def test_a_file_of_another_program_gets_its_name(tmp_path: Path) -> None:
    (tmp_path / "key.new").write_text("new")
    (tmp_path / "key").write_text("old")
    move(tmp_path / "key.new", tmp_path / "key")
    assert (tmp_path / "key").read_text() == "new"


@pytest.mark.parametrize("text", ["", "{", "\xff"])
def test_damaged_json_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    assert read_json(path) is None
    path.write_bytes(text.encode("latin-1"))
    assert read_json(path) is None


def hold(path: Path, held: Any, end: Any) -> None:
    with locked(path, "it"):
        held.set()
        end.wait(60)


def test_a_wait_for_a_lock_ends_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "made" / "lock"
    context = multiprocessing.get_context("fork")
    held, end = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(path, held, end))
    holder.start()
    held.wait(60)
    busy = f"cluster c is in use by process {holder.pid}"
    with pytest.raises(LockedError, match=busy), locked(path, "cluster c"):
        pytest.fail("two holders at once")
    with pytest.raises(LockedError, match="after a wait"), locked(path, "", wait_s=0.05):
        pytest.fail("two holders at once")
    waits: list[str] = []

    def waiting() -> None:
        waits.append("once")
        threading.Timer(0.1, end.set).start()

    with locked(path, "c", wait_s=None, waiting=waiting):
        assert path.exists()
    assert waits == ["once"]
    assert not path.exists()
    holder.join()


def test_the_words_of_ssh() -> None:
    plain = Login("h", options={"BatchMode": "yes"})
    assert plain.argv() == ("ssh", "-o", "BatchMode=yes", "--", "h")
    far = Login("10.0.0.1", user="u", port=22, config=NO_CONFIG).through(plain).kept("/s", 9)
    words = far.argv("exec true")
    assert words[:3] == ("ssh", "-F", "/dev/null")
    assert words[-6:] == ("-p", "22", "-l", "u", "--", "10.0.0.1", "exec true")[-6:]
    options = dict(word.split("=", 1) for word in words if "=" in word and " " not in word)
    assert options["ControlPath"] == "/s"
    assert options["ControlPersist"] == "9"
    proxy = next(word for word in words if word.startswith("ProxyCommand="))
    assert shlex.split(proxy.partition("=")[2])[-4:] == ["-W", "[%h]:%p", "--", "h"]
    assert far.control("exit")[-4:] == ("-O", "exit", "--", "10.0.0.1")


def test_own_keys_as_a_file() -> None:
    text = ssh_config("*", own_keys("/k", "/hosts"))
    assert text.startswith("Host *\n  BatchMode yes\n")
    assert "  IdentityFile /k\n" in text
    assert "  StrictHostKeyChecking yes" in text
