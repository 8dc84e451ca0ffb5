# SPDX-License-Identifier: Apache-2.0
"""A simulated vCenter (tests/vcsim) for a module of tests: real SOAP over TLS."""

from __future__ import annotations

import hashlib
import os
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.apply import Cluster
from nearmetal.backend import Store, open_backend
from nearmetal.run import LocalRunner
from nearmetal.spec import VsphereSpec, parse_spec
from nearmetal.spec.password import PasswordSource
from nearmetal.spec.vsphere import Vcenter
from tests.system.need import lacking

if TYPE_CHECKING:
    from collections.abc import Generator

    from nearmetal.backend.vsphere.session import Session

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "build" / "vcsim" / "vcsim"

PASSWORD = "VCENTER_TEST_PASSWORD"
TEMPLATE = "DC0_C0_RP0_VM0"


@dataclass(frozen=True)
class Simulator:
    port: int
    certificate: Path

    @property
    def thumbprint(self) -> str:
        der = ssl.PEM_cert_to_DER_cert(self.certificate.read_text())
        digest = hashlib.sha256(der).hexdigest()
        return ":".join(digest[i : i + 2] for i in range(0, len(digest), 2))

    def head(self, name: str, trust: str | None = None) -> str:
        """Return the top of a spec, up to the vCenter."""
        trust = f"thumbprint: '{self.thumbprint}'" if trust is None else trust
        return (
            f"version: 1\nname: {name}\nbackend: vsphere\nvcenter:\n  server: 127.0.0.1\n"
            f"  port: {self.port}\n  user: user\n  password: {{env: {PASSWORD}}}\n"
            + (f"  {trust}\n" if trust else "")
        )

    def session(self) -> Session:
        """Return a session of our own, to look and to meddle."""
        from nearmetal.backend.vsphere.session import Session  # noqa: PLC0415 - needs the SDK

        return Session(
            Vcenter(
                server="127.0.0.1",
                port=self.port,
                user="user",
                password=PasswordSource(env=PASSWORD),
                thumbprint=self.thumbprint,
            )
        )


def spec_of(text: str) -> VsphereSpec:
    spec = parse_spec(text)
    assert isinstance(spec, VsphereSpec)
    return spec


def opened(spec: VsphereSpec, directory: Path) -> Cluster:
    """Return the cluster of a spec, with its records in a directory."""
    store = Store(directory / "state")
    return Cluster(spec.name, open_backend(spec, store, LocalRunner()), store)


def simulator(directory: Path) -> Generator[Simulator, None, None]:
    """Run a simulator while it is used."""
    if not PROGRAM.exists():
        lacking(f"{PROGRAM} is missing: run `make setup-vsphere`")
    certificate = directory / "vcenter.pem"
    with subprocess.Popen(
        [str(PROGRAM), "-certificate", str(certificate)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # It leaves its directories behind.
        env={**os.environ, "TMPDIR": str(directory)},
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        where = process.stdout.readline().strip()
        try:
            yield Simulator(int(where.rpartition(":")[2]), certificate)
        finally:
            process.stdin.close()
            process.wait(timeout=60)
