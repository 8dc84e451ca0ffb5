# SPDX-License-Identifier: Apache-2.0
"""Serves one API on a socket that is open already: wsgi_server.py MODULE DESCRIPTOR."""

from __future__ import annotations

import importlib
import socket
import sys

import waitress


def main() -> None:
    """Serve until killed."""
    module, descriptor = sys.argv[1:]
    # The services read the command line, too.
    del sys.argv[1:]
    application = importlib.import_module(module).application
    waitress.serve(application, sockets=[socket.socket(fileno=int(descriptor))], threads=6)


main()
