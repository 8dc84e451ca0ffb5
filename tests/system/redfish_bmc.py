# SPDX-License-Identifier: Apache-2.0
"""A BMC for tests: sushy-tools' emulator over HTTPS, with a BIOS whose settings wait for a reset.

The emulator's own fake machine has no BIOS, and its libvirt machine takes settings at once. Usage:
redfish_bmc.py DIRECTORY, which holds cert.pem, key.pem, users (htpasswd) and bios.json. It prints
its port, and keeps the settings in bios.json: {"now": {...}, "staged": {...}}.
"""

import json
import sys
from pathlib import Path
from typing import Any

import flask
from sushy_tools.emulator import main as emulator
from sushy_tools.emulator.resources.systems import fakedriver
from werkzeug.serving import make_server


class Machine(fakedriver.FakeDriver):  # type: ignore[misc]
    """One machine; a restart puts staged settings in force."""

    file = Path()

    def _bios(self) -> dict[str, dict[str, Any]]:
        return json.loads(self.file.read_text())  # type: ignore[no-any-return]

    def get_bios(self, identity: str) -> dict[str, Any]:
        self._get(identity)
        found = self._bios()
        staged = flask.request.path.endswith("/Settings")
        return {**found["now"], **found["staged"]} if staged else found["now"]

    def set_bios(self, identity: str, attributes: dict[str, Any]) -> None:
        self._get(identity)
        found = self._bios()
        found["staged"].update(attributes)
        self.file.write_text(json.dumps(found))

    def set_power_state(self, identity: str, state: str) -> None:
        self._get(identity)
        if "Restart" in state:
            found = self._bios()
            self.file.write_text(json.dumps({"now": found["now"] | found["staged"], "staged": {}}))


def serve(directory: Path) -> None:
    Machine.file = directory / "bios.json"
    fakedriver.FakeDriver = Machine
    app = emulator.app
    app.configure(
        extra_config={
            "SUSHY_EMULATOR_FAKE_DRIVER": True,
            "SUSHY_EMULATOR_AUTH_FILE": str(directory / "users"),
            "SUSHY_EMULATOR_STATE_DIR": str(directory),
        }
    )
    certificate = (str(directory / "cert.pem"), str(directory / "key.pem"))
    server = make_server("127.0.0.1", 0, app, threaded=True, ssl_context=certificate)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
