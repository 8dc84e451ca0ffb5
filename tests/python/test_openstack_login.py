# SPDX-License-Identifier: Apache-2.0
"""A log-in that Keystone refuses, with openstacksdk itself."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

pytest.importorskip("openstack")

from nearmetal.cluster.backends.openstack.session import CloudSession
from nearmetal.core.errors import BackendError


class Refuses(BaseHTTPRequestHandler):
    """Keystone, which knows no user."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_a_wrong_password_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        names = {"username": "u", "project_name": "p", "user_domain_name": "d"}
        auth = {"auth_url": f"http://127.0.0.1:{server.server_port}/v3", "password": "x", **names}
        auth["project_domain_name"] = "d"
        path = tmp_path / "clouds.yaml"
        entry = {"auth_type": "v3password", "auth": auth}
        path.write_text(yaml.safe_dump({"clouds": {"lab": entry}}))
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(path))
        try:
            with pytest.raises(BackendError, match="Keystone refuses the credentials") as caught:
                _ = CloudSession("lab").sdk
        finally:
            server.shutdown()
            thread.join()
    assert caught.value.hint == "correct `lab` in clouds.yaml"
