# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of networks without MPI: perftest, as text and as JSON, and NetPIPE."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nearmetal.evidence.model import (
    IN_ONE_NODE,
    NO_END,
    Column,
    Log,
    Row,
    Setup,
    Table,
    Unit,
    is_chosen,
)
from nearmetal.evidence.parse.reader import CRASHED, MIXED, Reader, on, remark, shown, stop

PERFTEST_COLUMNS = {
    "#bytes": Column("size", Unit.BYTES),
    "#iterations": Column("iterations", Unit.COUNT),
    "BW peak[MB/sec]": Column("bandwidth_peak", Unit.MEBIBYTES_PER_SECOND),
    "BW average[MB/sec]": Column("bandwidth", Unit.MEBIBYTES_PER_SECOND),
    "BW peak[MiB/sec]": Column("bandwidth_peak", Unit.MEBIBYTES_PER_SECOND),
    "BW average[MiB/sec]": Column("bandwidth", Unit.MEBIBYTES_PER_SECOND),
    "BW peak[Gb/sec]": Column("bandwidth_peak", Unit.GIGABITS_PER_SECOND),
    "BW average[Gb/sec]": Column("bandwidth", Unit.GIGABITS_PER_SECOND),
    "MsgRate[Mpps]": Column("rate", Unit.MEGAMESSAGES_PER_SECOND),
    "t_min[usec]": Column("latency_min", Unit.MICROSECONDS),
    "t_max[usec]": Column("latency_max", Unit.MICROSECONDS),
    "t_typical[usec]": Column("latency_typical", Unit.MICROSECONDS),
    "t_avg[usec]": Column("latency", Unit.MICROSECONDS),
    "t_stdev[usec]": Column("latency_stdev", Unit.MICROSECONDS),
    "99% percentile[usec]": Column("latency_p99", Unit.MICROSECONDS),
    "99.9% percentile[usec]": Column("latency_p999", Unit.MICROSECONDS),
    "99%[usec]": Column("latency_p99", Unit.MICROSECONDS),
    "99.9%[usec]": Column("latency_p999", Unit.MICROSECONDS),
    "tps average": Column("transactions", Unit.MESSAGES_PER_SECOND),
    "CPU_Util[%]": Column("cpu", Unit.PERCENT),
}
"""MB/sec of older versions are 2^20 bytes, as MiB/sec of newer versions; Gb/sec are 10^9 bits."""
for _port in "12":
    PERFTEST_COLUMNS |= {
        f"BW Port{_port}[MiB/sec]": Column(f"bandwidth_port{_port}", Unit.MEBIBYTES_PER_SECOND),
        f"BW Port{_port}[Gb/sec]": Column(f"bandwidth_port{_port}", Unit.GIGABITS_PER_SECOND),
        f"MsgRate Port{_port}[Mpps]": Column(f"rate_port{_port}", Unit.MEGAMESSAGES_PER_SECOND),
    }

JSON_LATENCY = {
    **{
        f"t_{n}": PERFTEST_COLUMNS[f"t_{n}[usec]"]
        for n in ("min", "max", "typical", "avg", "stdev")
    },
    "t_99": PERFTEST_COLUMNS["99%[usec]"],
    "t_99_9": PERFTEST_COLUMNS["99.9%[usec]"],
    "tps_average": PERFTEST_COLUMNS["tps average"],
}
_JSON_OPTIONS = (
    "number of qps",
    "connection type",
    "using srq",
    "pcie relax order",
    "ibv wr* api",
    "tx depth",
    "rx depth",
    "post list",
    "cq moderation",
    "cqe poll batch",
    "mtu",
    "max inline data",
    "outstand reads",
    "rdma cm qps",
    "data ex. method",
    "dual-port",
)
_JSON_OTHERS = ("MsgSize", "n_iterations", "BW_peak", "BW_average", "MsgRate", "CPU_util")

_TWO_SETTINGS = re.compile(r"(?<!\s)\s{2,}(?=[A-Z])")
_ROW = re.compile(r"\s*\d+\s+\d")
_NAN = re.compile(r"-?nan")
_OF_THE_HOST = ("device", "transport type", "link type", "gid index", "gid index2", "numa node")
"""Settings that describe the adapter of a host, not the test."""
_SETTING = re.compile(r"[A-Za-z][\w .*/-]{1,30}$")
_NAME_WIDTH = 16
"""perftest pads names to this width; warnings and addresses have no blank before their colon."""
_UNSET = ("OFF", "Unsupported", "")
_SIDES = ("local", "remote")
_NO_ADDRESS = re.compile(r"0*(?:0x)?0*")
"""The LID of a port that is not InfiniBand: only its GID names it."""
ON_GPU = "GPU"
"""The place of buffers with `--use_cuda`; the log shows the sides that wrote it."""

FIXED_TIME = "for a fixed time"
_NOT_MEASURED = ("bandwidth_peak",)
"""Figures that are 0 if perftest did not measure them, as with a fixed time (`-D`)."""


def _flags(settings: Mapping[str, str]) -> str:
    """Return the options of a test; what is switched off is left out, as other versions do."""
    return "; ".join(
        f"{name} {value.removesuffix('[B]')}"
        for name, value in sorted(settings.items())
        if value not in _UNSET and name not in _OF_THE_HOST
    )


def _test(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")


def _without_unmeasured(row: Row) -> Row:
    left_out = [name for name in _NOT_MEASURED if row.values.get(name) == 0]
    return Row(row.line, {n: v for n, v in row.values.items() if n not in left_out})


def _setup(rows: Sequence[Row], columns: Iterable[Column], settings: Mapping[str, str]) -> Setup:
    """Return the configuration. A run of a fixed time measures no peak and no distribution."""
    names = {column.metric for column in columns}
    no_peak = "bandwidth_peak" in names and not any("bandwidth_peak" in r.values for r in rows)
    counted = any(is_chosen(row.values.get("iterations", 0)) for row in rows)
    flags = "; ".join(filter(None, (_flags(settings), "no peak" if no_peak and counted else "")))
    timed = "transactions" in names or (no_peak and not counted)
    return Setup(iterations=FIXED_TIME if timed else "", flags=flags)


class Perftest(Reader):
    """perftest: the text of ib_{send,write,read,atomic}_{bw,lat}.

    Client and server often write into one stream: settings, headers and the last row stand twice.
    """

    format = "perftest"
    version = 6
    title = ""
    buffers = ""
    """Where the messages lie, if the log says it: `--use_cuda` prints the steps of its buffer."""
    closed = True
    """Whether a line of dashes follows the last row."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.by_size: dict[float, Row] = {}
        self._ports: list[tuple[str, str]] = []
        """The addresses of both sides, in their order."""

    @classmethod
    def parse(cls, text: str, file: str) -> Log:
        """Read one output, as text or as JSON; raises LogError when it is damaged or another one."""
        is_json = text.removeprefix("\ufeff").lstrip().startswith("{")
        return (PerftestJson if is_json else cls)(text, file).read()

    @on(r"\s+((?:RDMA_Write|RDMA_Read|Send|Atomic\S*|Write|Read)\b.*?) Test\s*$")
    def _name(self, match: re.Match[str]) -> None:
        if self.title not in ("", match[1]):
            raise self.fail(f"{match[1]} after {self.title}", MIXED)
        self.title = match[1]
        self.test = _test(self.title)

    @on(r"\s*#bytes")
    def _head(self, match: re.Match[str]) -> None:
        found = self.spaced_columns(match.string, PERFTEST_COLUMNS)
        if self.columns not in (None, found):
            raise self.fail("another header", MIXED)
        if self.columns is None:
            self.open_table(found)

    @on(r"\s*(local|remote) address:\s*LID\s+(\w+)")
    def _address(self, match: re.Match[str]) -> None:
        self._ports.append((match[1], match[2]))

    @on(r"\s*GID:\s*(\S+)")
    def _gid(self, match: re.Match[str]) -> None:
        if self._ports:
            self._ports[-1] = (self._ports[-1][0], f"{self._ports[-1][1]} {match[1]}")

    def _is_loopback(self) -> bool:
        """Return whether every local address is that of the remote side: one port, one node."""
        sides = [{port for side, port in self._ports if side == name} for name in _SIDES]
        known = sides[0] | sides[1]
        return all(sides) and len(known) == 1 and not _NO_ADDRESS.fullmatch(known.pop())

    _failed = stop(
        r"\s*(?:Completion with error|Failed status|Failed to |Problems with warm ?up|Couldn't |"
        r"Unable to |Data validation failed|bad wc status)",
        "the test failed",
    )

    @on(r"\s*(?:initializing CUDA|cuMemAlloc\(\)|allocated GPU buffer)")
    def _gpu(self, match: re.Match[str]) -> None:
        self.buffers = ON_GPU
        self.remark(match.string)

    @on(r"\s*(?:Test with events|MultiCast runs)")
    def _option(self, match: re.Match[str]) -> None:
        self.header.setdefault(match[0].strip().lower(), "ON")

    @on("")
    def _other(self, match: re.Match[str]) -> None:
        text = match.string
        if self.columns and _ROW.match(text):
            self._row(text.split(), self.columns)
        elif self.title and not self.columns:
            for part in _TWO_SETTINGS.split(text):
                padded, _, value = part.partition(":")
                name = padded.strip()
                aligned = padded[-1:].isspace() or len(name) == _NAME_WIDTH
                if aligned and value[:1].isspace() and _SETTING.match(name):
                    self.header.setdefault(name.lower(), value.strip())
        elif text.strip("-* \t"):
            self.remark(text)
        elif text.strip():
            self.closed = True

    def _row(self, words: list[str], columns: tuple[Column, ...]) -> None:
        # perftest may print nan for a deviation that it could not compute: that value is left out.
        for at, column in enumerate(columns[: len(words)]):
            if column.metric == "latency_stdev" and _NAN.fullmatch(words[at]):
                words, columns = words[:at] + words[at + 1 :], columns[:at] + columns[at + 1 :]
                break
        found = _without_unmeasured(self.row(words, columns))
        self.closed = False
        size = found.values["size"]
        before = self.by_size.setdefault(size, found)
        if before.values != found.values:
            raise self.fail(
                f"size {size:.0f} stands twice with different values",
                f"the other is in line {before.line}: {MIXED}",
            )

    def end(self) -> None:
        """Close the table."""
        if not self.title:
            raise self.fail("not the output of perftest", "no line names its test", 1)
        if self.columns is None or not self.by_size:
            raise self.fail(f"{self.title} printed no row", CRASHED)
        self.rows = list(self.by_size.values())
        if not self.closed:
            self.remarks.append((self.rows[-1].line, f"{self.test}: {NO_END}"))
        setup = _setup(self.rows, self.columns, self.header)._replace(buffers=self.buffers)
        self.close_table(setup, 2)
        if self._is_loopback():
            self.tables = [
                replace(t, nodes=1, setup=t.setup._replace(placement=IN_ONE_NODE))
                for t in self.tables
            ]


class PerftestJson(Reader):
    """perftest: the file of `--out_json`."""

    format = "perftest"

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.text = text.removeprefix("\ufeff")
        self.results: dict[str, Any] = {}

    def read(self) -> Log:
        """Return the figures of the file as one row."""
        self.line = 1
        info = self._members()
        found = [(PERFTEST_COLUMNS["#bytes"], self._member("MsgSize"))]
        found += [(c, self._member(n)) for n, c in JSON_LATENCY.items() if n in self.results]
        line = self.line
        if "BW_average" in self.results and "MsgRate" in self.results:
            bandwidth = self._member("BW_average")
            line = self.line
            rate = self._member("MsgRate")
            unit = self._bandwidth_unit(rate * found[0][1], bandwidth, line)
            found.append((Column("bandwidth", unit), bandwidth))
            found.append((PERFTEST_COLUMNS["MsgRate[Mpps]"], rate))
            if "BW_peak" in self.results:
                found.append((Column("bandwidth_peak", unit), self._member("BW_peak")))
        if len(found) == 1:
            raise self.fail("no figures in results", "the file is cut off", 1)
        header = {
            k.lower().replace("_", " "): str(v)
            for k, v in info.items()
            if not isinstance(v, dict | list)
        }
        title = header.get("test", "").removesuffix("_Test").replace("_", " ")
        row = _without_unmeasured(Row(line, {column.metric: value for column, value in found}))
        columns = tuple(column for column, _ in found)
        settings = {name: value for name, value in header.items() if name in _JSON_OPTIONS}
        setup = _setup([row], columns, settings)
        table = Table(_test(title), line, columns, (row,), setup, 2)
        return Log(self.file, self.format, header, (table,))

    def _members(self) -> Mapping[str, Any]:
        """Take the results of the file, and return its settings."""
        try:
            data = json.loads(self.text)
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", 1)
            raise self.fail("not JSON", "perftest's file is cut off or damaged", line) from error
        info, results = (
            data.get(name) if isinstance(data, dict) else None for name in ("test_info", "results")
        )
        if not isinstance(info, dict) or not isinstance(results, dict):
            raise self.fail("not a file of perftest", "it needs test_info and results")
        for name in results:
            self.known(str(name), (*_JSON_OTHERS, *JSON_LATENCY), "member of results")
        if "MsgSize" not in results:
            raise self.fail("no MsgSize in results", "figures could not be distinguished")
        self.results = results
        return info

    def _member(self, name: str) -> float:
        """Return a number; the line in which it stands becomes the current line."""
        self.line = next((n for n, t in enumerate(self.lines, 1) if f'"{name}"' in t), 1)
        value = self.results[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            what = type(value).__name__ if isinstance(value, dict | list) else str(value)
            raise self.fail(f"{name} is {shown(what)}", "a number was expected")
        return self.number(repr(value))

    def _bandwidth_unit(self, amount: float, bandwidth: float, line: int) -> Unit:
        """Return the unit, which the file does not name: rate times size shows it."""
        for unit, scale in (
            (Unit.MEBIBYTES_PER_SECOND, 1e6 / (1 << 20)),
            (Unit.GIGABITS_PER_SECOND, 8e-3),
        ):
            due = amount * scale
            if due and abs(bandwidth - due) <= 0.02 * due:
                return unit
        raise self.fail(
            "the unit of the bandwidth is not named",
            "and rate times size fits neither MiB/s nor Gbit/s",
            line,
        )


NETPIPE_COLUMNS = (
    Column("size", Unit.BYTES),
    Column("repetitions", Unit.COUNT),
    Column("bandwidth", Unit.MEBIBITS_PER_SECOND),
    Column("time", Unit.MICROSECONDS),
)
_NETPIPE_OPTIONS = (
    "Using ",
    "Preposting ",
    "Receive using ",
    "Streaming ",
    "Passing data in both directions",
    "Performance measured without cache",
    "Resetting connection",
    "Transmit buffer offset",
    "Receive buffer offset",
    "Send and receive buffers are",
    "Buffer alignment",
)
"""The lines with which NetPIPE reports its options."""
_NETPIPE_ROW = re.compile(
    r"\s*(\d+):\s+(\S+) bytes\s+(\S+) times -->\s+(\S+) (\S+) in\s+(\S+) (\S+)\s*$"
)


class NetPipe(Reader):
    """NetPIPE 3.7: the lines that it prints while it runs.

    It prints no header, so the words around the numbers are checked. Its "Mbps" are 2^20 bits. It
    has no end mark: the caller knows the largest size and must check it.
    """

    format = "netpipe"
    version = 2
    test = "PingPong"
    START = "Now starting the main loop"

    @on(rf"\s*{START}\s*$")
    def _start(self, _match: re.Match[str]) -> None:
        self.columns, self.opened = NETPIPE_COLUMNS, self.line

    @on(r"\s*\d+:\s+\d+ bytes")
    def _row(self, match: re.Match[str]) -> None:
        if not self.opened:
            self.remark(match.string)
            return
        row = _NETPIPE_ROW.match(match.string)
        if row is None:
            raise self.fail(
                f"{shown(match.string)} is not a row of NetPIPE", "it is cut off or damaged"
            )
        index, size, times, rate, rate_unit, time, time_unit = row.groups()
        if self.whole(index) != len(self.rows):
            raise self.fail(
                f"row {index} where {len(self.rows)} was due", "rows are missing or mixed"
            )
        if (rate_unit, time_unit) != ("Mbps", "usec"):
            raise self.fail(f"units {rate_unit!r} and {time_unit!r}", "Mbps and usec were expected")
        self.rows.append(self.row((size, times, rate, time), NETPIPE_COLUMNS))

    _failed = stop(r".*[Ii]ntegrity check.*(?:fail|error)", "the data arrived wrong")

    @on(rf"\s*(?:{'|'.join(_NETPIPE_OPTIONS)})")
    def _option(self, match: re.Match[str]) -> None:
        self.flag(match.string.strip().rstrip("."))
        self.remark(match.string)

    @on(r"([01]): ([A-Za-z][\w.-]{0,255})$")
    def _host(self, match: re.Match[str]) -> None:
        self.rank_map.put(int(match[1]), match[2])

    _other = remark(r"\s*\S")

    def end(self) -> None:
        """Close the table."""
        if not self.opened:
            raise self.fail("not the output of NetPIPE", f"{self.START!r} is missing", 1)
        if not self.rows:
            raise self.fail("NetPIPE printed no row", CRASHED)
        counts = {row.values["repetitions"] for row in self.rows}
        # Without -n, the number of repetitions follows the time of a message.
        chosen = f"{counts.pop():.0f}" if len(counts) == 1 and len(self.rows) > 1 else ""
        self.close_table(Setup(iterations=chosen, flags=self.flag_words()), 2)
