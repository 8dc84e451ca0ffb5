# SPDX-License-Identifier: Apache-2.0
"""Metrics in Prometheus's text format, as a text or over HTTP, by Prometheus's client library.

The server answers with the metrics of the last reading. It has no other page, changes nothing, and
serves a limited number of clients at the same time, each for a limited time.
"""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from nearmetal.core.errors import NearmetalError
from nearmetal.core.extras import ExtraError
from nearmetal.core.metrics import Metric

_CLIENTS = 8
_CLIENT_S = 10


def _library() -> Any:
    try:
        import prometheus_client.core  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ExtraError("metrics", "the metrics of Prometheus", error) from error
    return prometheus_client


class _Collector:
    """The metrics as the library collects them."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        """`read` returns the metrics of now."""
        self._read = read

    def collect(self) -> Iterator[Any]:
        """Yield each metric with its samples."""
        core = _library().core
        kinds = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
        for metric in self._read():
            family = kinds[metric.kind](
                f"nearmetal_{metric.name}", metric.text, labels=metric.labels
            )
            for labels, value in metric.samples:
                family.add_metric(labels, value)
            yield family


def _registry(read: Callable[[], Iterable[Metric]]) -> Any:
    registry = _library().CollectorRegistry(auto_describe=False)
    registry.register(_Collector(read))
    return registry


def metrics_text(metrics: Sequence[Metric]) -> str:
    """Return the text for a scrape, or for the textfile collector of node_exporter."""
    return str(_library().generate_latest(_registry(lambda: metrics)).decode("utf-8"))


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """Serves some clients at the same time; a further one is refused."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *args: Any, **options: Any) -> None:
        self._free = threading.BoundedSemaphore(_CLIENTS)
        super().__init__(*args, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread if one is free."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one client."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that went away or was too slow."""


class _Handler(WSGIRequestHandler):
    """Writes no line for each request."""

    timeout = _CLIENT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base
        """Write nothing."""

    def address_string(self) -> str:
        """Return the address, without a query for its name."""
        return str(self.client_address[0])


@contextmanager
def served(address: str, port: int, read: Callable[[], Iterable[Metric]]) -> Iterator[int]:
    """Serve `/metrics` until the block ends; yields the port, which the kernel chooses for 0."""
    answer = _library().make_wsgi_app(_registry(read))

    def application(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        good = environ.get("PATH_INFO") == "/metrics"
        if good and environ.get("REQUEST_METHOD") in ("GET", "HEAD"):
            found: Iterable[bytes] = answer(environ, start)
            return found
        start("405 Method Not Allowed" if good else "404 Not Found", [("Content-Length", "0")])
        return []

    try:
        server = make_server(address, port, application, _Server, _Handler)
    except OSError as error:
        raise NearmetalError(
            f"cannot listen at {address}:{port}: {error.strerror or error}",
            "give another address or port with --listen",
        ) from error
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
