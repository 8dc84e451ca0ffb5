# SPDX-License-Identifier: Apache-2.0
"""ssh keys of a job, the same on all of its nodes without a word between them.

They are derived from a file that root alone reads and all nodes have alike: whoever does not have
it cannot know the keys of any job, and those of one job say nothing of another's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.core.errors import CommandError, SlurmError
from nearmetal.core.process import Command

if TYPE_CHECKING:
    from nearmetal.core.process import Runner

MIN_KEY_BYTES = 32
_MAX_KEY_BYTES = 4096
_STEP_S = 30.0
_KIND = b"ssh-ed25519"
_PKCS8 = bytes.fromhex("302e020100300506032b657004220420")
"""What stands before the 32 bytes of an Ed25519 key in its PKCS#8 form (RFC 8410)."""

_SPKI = bytes.fromhex("302a300506032b6570032100")
"""What stands before the 32 bytes of the public key."""

_BLOCK = 8
_WIDTH = 70


@dataclass(frozen=True)
class Pair:
    """A private key as ssh reads it, and its public half."""

    private: str = field(repr=False)
    public: str


def read_site_key(path: Path) -> bytes:
    """Return the file's bytes; raises SlurmError when it is not there, short or open to others."""
    hint = (
        f"make it on one node and copy it to all: install -m 600 <(head -c 64 /dev/urandom) {path}"
    )
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(stream.fileno())
            key = stream.read(_MAX_KEY_BYTES)
    except OSError as error:
        raise SlurmError(f"{path}: {error.strerror}: no keys for virtual machines", hint) from error
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
        raise SlurmError(f"{path}: others than its owner may read it", f"chmod 600 {path}")
    if len(key) < MIN_KEY_BYTES:
        raise SlurmError(f"{path}: {len(key)} bytes are no key, {MIN_KEY_BYTES} are", hint)
    return key


def derive(site_key: bytes, purpose: str, job: int, uid: int, nodes: str) -> bytes:
    """Return 32 bytes for one purpose in one job. Pure."""
    told = f"nearmetal slurm 1 {purpose} job={job} uid={uid} nodes={nodes}"
    return hmac.new(site_key, told.encode(), hashlib.sha256).digest()


def pair(seed: bytes, comment: str, runner: Runner) -> Pair:
    """Return the Ed25519 pair that 32 bytes stand for. openssl computes the public half."""
    argv = ("openssl", "pkey", "-inform", "DER", "-pubout", "-outform", "DER")
    try:
        told = runner.check(Command(argv, stdin=_PKCS8 + seed), timeout_s=_STEP_S).stdout
    except CommandError as error:
        msg = f"no key for virtual machines: {error.message}"
        raise SlurmError(msg, error.hint or "is openssl installed?") from error
    if not told.startswith(_SPKI) or len(told) != len(_SPKI) + len(seed):
        raise SlurmError("openssl wrote something else than an Ed25519 key")
    return encode(seed, told[len(_SPKI) :], comment)


def encode(seed: bytes, public: bytes, comment: str) -> Pair:
    """Return a pair in OpenSSH's own format, without a passphrase. Pure."""
    blob = _text(_KIND) + _text(public)
    # Twice the same number: by it a reader sees that it has deciphered the rest.
    check = hashlib.sha256(seed + b"check").digest()[:4]
    secret = check + check + blob + _text(seed + public) + _text(comment.encode())
    secret += bytes(range(1, 1 + -len(secret) % _BLOCK))
    whole = (
        b"openssh-key-v1\0"
        + _text(b"none")
        + _text(b"none")
        + _text(b"")
        + (1).to_bytes(4, "big")
        + _text(blob)
        + _text(secret)
    )
    body = base64.b64encode(whole).decode()
    lines = [body[i : i + _WIDTH] for i in range(0, len(body), _WIDTH)]
    private = "\n".join(
        ["-----BEGIN OPENSSH PRIVATE KEY-----", *lines, "-----END OPENSSH PRIVATE KEY-----", ""]
    )
    return Pair(private, f"ssh-ed25519 {base64.b64encode(blob).decode()} {comment}")


def _text(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data
