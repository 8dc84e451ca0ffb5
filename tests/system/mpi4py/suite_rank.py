# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - the names of unittest's interface
"""Runs mpi4py's own test suite in one rank, and says on standard output how each test went.

    suite_rank.py SUITE_DIR [options of the suite's main.py]

Every event is one short line, written at once, so that a launcher forwards it whole:

    @suite RANK NUMBER start TEST
    @suite RANK NUMBER ok|skip|fail|error|expected|unexpected TEST
    @suite RANK NUMBER done COUNT

NUMBER counts the events of the rank: a gap tells the reader that a line was lost. Tracebacks go
to standard error as unittest prints them.
"""

import importlib
import os
import sys
import unittest
from types import TracebackType
from typing import Any

Error = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]

MARK = "@suite"


class EventResult(unittest.TextTestResult):
    """A unittest result that also prints one event per test."""

    rank = 0
    number = 0
    outcome: str | None = None

    def emit(self, what: str, name: str) -> None:
        """Print one event; the newline before it ends a line the test may have begun."""
        line = f"\n{MARK} {EventResult.rank} {EventResult.number} {what} {name}\n"
        EventResult.number += 1
        sys.stdout.flush()
        os.write(1, line.encode("utf-8", "replace"))

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.outcome = "ok"
        self.emit("start", test.id())

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self.emit(self.outcome or "error", test.id())
        self.outcome = None

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.outcome = "skip"

    def addFailure(self, test: unittest.TestCase, err: Error) -> None:
        super().addFailure(test, err)
        self.outcome = "fail"

    def addError(self, test: unittest.TestCase, err: Error) -> None:
        super().addError(test, err)
        if self.outcome is None:
            # setUpClass and the like fail outside any test
            self.emit("error", test.id().replace(" ", ""))
        else:
            self.outcome = "error"

    def addSubTest(
        self, test: unittest.TestCase, subtest: unittest.TestCase, err: Error | None
    ) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.outcome = "fail"

    def addExpectedFailure(self, test: unittest.TestCase, err: Error) -> None:
        super().addExpectedFailure(test, err)
        self.outcome = "expected"

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        super().addUnexpectedSuccess(test)
        self.outcome = "unexpected"


def main(argv: list[str]) -> None:
    """Load the suite from its directory and run it with our result class."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, argv[1])
    base: Any = importlib.import_module("main").TestProgram

    class Program(base):  # type: ignore[misc]
        """The suite's program; knows the rank once MPI is up."""

        def runTests(self) -> None:
            EventResult.rank = importlib.import_module("mpi4py.MPI").COMM_WORLD.Get_rank()
            runner: Any = unittest.TextTestRunner
            self.testRunner = runner(verbosity=0, failfast=self.failfast, resultclass=EventResult)
            try:
                super().runTests()
            finally:
                result = getattr(self, "result", None)
                if isinstance(result, EventResult):
                    result.emit("done", str(result.testsRun))

    Program(module=None, argv=[argv[0], *argv[2:]])


if __name__ == "__main__":
    main(sys.argv)
