# SPDX-License-Identifier: Apache-2.0
"""The management controller of a host: sushy-tools' emulator over HTTPS, with a certificate of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import bcrypt

PASSWORD = "correct horse"


class Bmc:
    """One, with a BIOS whose settings wait for a restart. `folder`: for its files, made here."""

    def __init__(self, folder: Path, bios: dict[str, Any]) -> None:
        """Start it."""
        self.folder = folder
        folder.mkdir()
        subprocess.run(
            [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=bmc",
                "-addext",
                "subjectAltName=IP:127.0.0.1",
                "-keyout",
                folder / "key.pem",
                "-out",
                folder / "cert.pem",
            ],
            check=True,
            capture_output=True,
            timeout=60,
        )
        hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
        (folder / "users").write_text(f"admin:{hashed}\n")
        (folder / "secret").write_text(PASSWORD + "\n")
        (folder / "secret").chmod(0o600)
        self.set(bios)
        program = Path(__file__).with_name("redfish_bmc.py")
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, program, folder], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        with self.process.stdout as said:
            line = said.readline().strip()
        assert line.isdigit(), self.log
        self.port = int(line)

    @property
    def spec(self) -> str:
        """What a hosts file says of it."""
        return (
            f'{{address: "https://127.0.0.1:{self.port}", user: admin, vendor: dell, '
            f"ca: {self.folder}/cert.pem, password: {{file: {self.folder}/secret}}}}"
        )

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def now(self) -> dict[str, Any]:
        """The settings in force."""
        found: dict[str, Any] = self._bios()["now"]
        return found

    def restart(self) -> None:
        """What a restart of the machine does to its BIOS."""
        found = self._bios()
        self.set(found["now"] | found["staged"])

    def set(self, bios: dict[str, Any]) -> None:
        """Put settings in force, with nothing staged."""
        new = self.folder / "bios.new"
        new.write_text(json.dumps({"now": bios, "staged": {}}))
        new.rename(self.folder / "bios.json")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def _bios(self) -> dict[str, Any]:
        return json.loads((self.folder / "bios.json").read_text())  # type: ignore[no-any-return]
