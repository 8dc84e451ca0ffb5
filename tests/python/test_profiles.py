# SPDX-License-Identifier: Apache-2.0
"""MPI profiles of real runs, and of hostile ones: read in full, or refused with file and line."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearmetal.core.errors import LogError
from nearmetal.evidence.profiles import READERS, Profile, read_profile
from nearmetal.evidence.profiles.calls import LOCAL, POINT_TO_POINT, CallUse, group_of, sends
from nearmetal.evidence.profiles.mpip import REST
from tests.python.study_shared import DATA
from tests.python.test_hostile_work import LONG, assert_linear, grown, hostile_lines

PROFILES = DATA / "profiles"
RANKS = sorted((PROFILES / "openmpi-monitoring").iterdir())
MPIP = (PROFILES / "lammps.mpiP").read_text()
XML = (PROFILES / "lammps.ipm.xml").read_text()
BANNER = (PROFILES / "lammps.ipm.txt").read_text()
COUNTS = [path.read_text() for path in RANKS]

SCOREP = """\

Estimated aggregate size of event trace:                   501kB
Estimated requirements for largest trace buffer (max_buf): 251kB
Estimated memory requirements (SCOREP_TOTAL_MEMORY):       4097kB
(hint: When tracing set SCOREP_TOTAL_MEMORY=4097kB to avoid intermediate flushes
 or reduce requirements using USR regions filters.)

flt     type max_buf[B] visits time[s] time[%] time/visit[us]  region
         ALL    256,161 12,012    4.00   100.0         333.00  ALL
         MPI    232,096 10,008    0.52    13.0          51.96  MPI
         COM     24,024  2,002    3.48    87.0        1738.26  COM

         MPI     66,000  2,000    0.30     7.5         150.00  MPI_Allreduce
         MPI     59,000  2,000    0.01     0.3           5.50  MPI_Recv
-        MPI     59,000  1,999    0.01     0.1           2.50  MPI_Send
         COM     24,000  2,000    3.48    87.0        1740.00  double solve(int, char const*)
"""

GOOD = {"mpip": MPIP, "ipm-xml": XML, "ipm": BANNER, "scorep": SCOREP}


def read(text: str, file: str = "f") -> Profile:
    return read_profile([(file, text)])


def total(profile: Profile, call: str) -> tuple[float, float, float]:
    """Return count, seconds and bytes of a call."""
    uses = [use for use in profile.calls if use.call == call]
    sized = [m for use in uses for m in use.messages]
    return (
        sum(use.count for use in uses),
        sum(use.seconds or 0.0 for use in uses),
        sum((m.size or 0.0) * m.count for m in sized),
    )


def test_mpip_has_calls_times_and_sizes() -> None:
    found = read(MPIP)
    assert (found.format, found.ranks, found.seconds) == ("mpip", 2, 5.56)
    count, seconds, nr_bytes = total(found, "Send")
    assert (count, nr_bytes) == pytest.approx((4060, 1.23e8), rel=0.01)
    assert seconds == pytest.approx(3.21, rel=0.01)
    assert sum(use.seconds or 0.0 for use in found.calls) == pytest.approx(3.27, rel=0.01)
    assert total(found, "Allreduce")[::2] == pytest.approx((180, 1872))


def test_mpip_without_callsites_has_the_first_twenty_and_the_rest() -> None:
    head, _, tail = MPIP.partition("@--- Callsite Time statistics")
    end = tail[tail.index("-" * 75 + "\n@--- End of Report") :]
    whole = read(head + end)
    assert total(whole, "Send") == pytest.approx((4060, 3.21, 1.23e8), rel=0.01)
    assert not [use for use in whole.calls if use.call == REST]
    cut = "\n".join(line for line in head.split("\n") if not re.match(r"Send +148 +3.21", line))
    (rest,) = [use for use in read(cut + end).calls if use.call == REST]
    assert rest.seconds == pytest.approx(3.21, rel=0.01)


def test_mpip_of_a_version_without_counts_takes_those_of_the_sizes() -> None:
    head, _, tail = MPIP.partition("@--- Callsite Time statistics")
    end = tail[tail.index("-" * 75 + "\n@--- End of Report") :]
    lines = head.split("\n")
    begin = next(i for i, line in enumerate(lines) if line.startswith("@--- Aggregate Time"))
    for i in range(begin + 2, begin + 17):
        lines[i] = " ".join(lines[i].split()[:5])
    assert lines[begin + 2].split()[-1] == "MPI%"
    found = read("\n".join(lines) + end)
    assert total(found, "Send")[0] == 4060


def test_ipm_xml_has_each_size() -> None:
    found = read(XML)
    assert (found.format, found.ranks) == ("ipm-xml", 2)
    assert found.seconds == pytest.approx(3.19165 + 3.19132)
    count, seconds, nr_bytes = total(found, "Send")
    assert count == 4060
    assert nr_bytes == pytest.approx(1.23e8, rel=0.1)
    assert seconds == pytest.approx(3.63, abs=0.01)
    sizes = {m.size for use in found.calls if use.call == "Send" for m in use.messages}
    assert {0.0, 28672.0, 65536.0} <= sizes


def test_ipm_xml_without_sizes_has_their_mean() -> None:
    short = "\n".join(line for line in XML.split("\n") if not line.startswith("<hent"))
    found = read(short)
    assert total(found, "Send")[:2] == pytest.approx(total(read(XML), "Send")[:2], rel=1e-3)
    (use,) = [use for use in found.calls if use.call == "Send"]
    assert use.messages[0].size == pytest.approx(total(read(XML), "Send")[2] / 4060, rel=0.1)


def test_the_banner_of_ipm_has_no_sizes() -> None:
    found = read("Loop time of 1 on 2 procs\n" + BANNER + "more output\n")
    assert (found.format, found.ranks, found.seconds) == ("ipm", 2, 6.37)
    assert total(found, "Send")[:2] == (4060, 3.63)
    assert all(m.size is None for use in found.calls if use.call == "Send" for m in use.messages)
    assert found.remarks


def test_scorep_score_has_regions_of_mpi() -> None:
    found = read(SCOREP)
    assert (found.format, found.ranks, found.seconds) == ("scorep", None, 4.0)
    assert total(found, "Allreduce")[:2] == pytest.approx((2000, 0.3))
    assert [use.call for use in found.calls] == ["Allreduce", "Recv", "Send"]
    threads = SCOREP + "  OMP     24,000  2,000    3.48    87.0        1740.00  parallel\n"
    assert read(threads).seconds is None


def test_the_counts_of_all_ranks_are_one_profile() -> None:
    found = read_profile([(str(path), path.read_text()) for path in RANKS])
    assert (found.format, found.ranks, found.seconds) == ("openmpi-monitoring", 2, None)
    (use,) = found.calls
    assert isinstance(use, CallUse)
    # As many as the provider counted in a run of the same input: 4452 messages.
    assert use.count == 4452
    assert sum(m.count for m in use.messages) == 4452
    nr_bytes = sum((m.size or 0) * m.count for m in use.messages)
    assert nr_bytes == pytest.approx(61571616 + 1452 + 61568800 + 972, rel=1e-6)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([("a", COUNTS[0])], "a:.*1 files of 2 ranks, give the directory"),
        ([("a", COUNTS[0]), ("b", COUNTS[0])], "b:1: rank 0 is also in a"),
        ([("a", COUNTS[0].replace("E\t0", "E\t1"))], "a:.*rank 0 in the file of rank 1"),
        ([("a", COUNTS[0].partition("D\t")[0])], "a:.*stops before its end"),
        ([("a", COUNTS[0].replace("2108 msgs", "2107 msgs"))], "a:.*2243 messages in the classes"),
        ([("a", COUNTS[0] + "\tx\n")], "a:19: an unknown line"),
        ([("a", COUNTS[0].replace(",1913,", ",,"))], "a:2: '' is not a number"),
        ([("a", COUNTS[0].replace("\n", "," + "0," * 66 + "\n", 2))], "a:"),
        ([], "no file of a profile"),
        ([("a", "hello\n")], "a:1: not a known profile"),
        ([("a", MPIP), ("b", MPIP)], "a:1: a profile of mpip, give one file"),
        ([("a", MPIP + MPIP)], "a:166: a second title, two outputs"),
        ([("a", MPIP[:5000])], "a:.*End of Report.*is missing"),
        ([("a", MPIP.replace("AppTime", "Time"))], "a:19: unknown column 'Time'"),
        (
            [("a", MPIP.replace("   *       5.56       3.27", "   *       5,56       3.27"))],
            "decimal comma",
        ),
        (
            [("a", MPIP.replace("   *       5.56       3.27    58.76\n", ""))],
            "no time of all ranks",
        ),
        ([("a", re.sub(r"@ MPI Task.*\n", "", MPIP))], "no ranks"),
        ([("a", re.sub(r"(Send +148 +\* +4060 .*)", r"\1 7", MPIP))], "10 values for 9 columns"),
        ([("a", XML[:-60])], "</ipm_job_profile>.*is missing"),
        ([("a", XML.replace('mpi_size="2"', 'mpi_size="3"'))], "2 tasks of 3 ranks"),
        ([("a", XML.replace('mpi_size="2"', 'mpi_size="3"', 1))], "a task of 2 ranks"),
        ([("a", XML.replace(' count="1"', ""))], "a:90: no attribute count"),
        ([("a", XML.replace('bytes="28672"', 'bytes="-1"'))], "'-1' is not a measured value"),
        ([("a", XML.replace('bytes="28672"', 'bytes="1_0"'))], "'1_0' is not a number"),
        ([("a", BANNER + BANNER)], "a second banner"),
        ([("a", BANNER[:600])], "is missing"),
        ([("a", re.sub("# MPI_.*\n", "", BANNER))], "no calls in the banner"),
        ([("a", SCOREP.partition("\n         MPI     66,000")[0])], "no region of MPI"),
        ([("a", SCOREP.replace("2,000    0.30", "2,00    0.30"))], "a number of visits"),
        ([("a", SCOREP.replace("time[%] ", "surprise "))], "unknown column 'surprise'"),
        ([("a", re.sub(r".*  ALL\n", "", SCOREP))], "the row ALL is missing"),
        ([("a", "@ mpiP\n" + "x" * (1 << 16) + "y\n")], "a:2: more than 65536 characters"),
    ],
)
def test_damaged_profiles_are_refused(texts: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(LogError, match=message):
        read_profile(texts)


def test_entities_of_a_file_are_text() -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "MPI_Send">]>\n' + XML.replace(
        '"MPI_Send" bytes', '"&a;" bytes'
    )
    found = read(bomb)
    assert not total(found, "Send")[0]
    assert "&a;" not in {use.call for use in found.calls}


def test_calls_have_groups() -> None:
    for call, group in {
        "Isend": POINT_TO_POINT,
        "Waitall": POINT_TO_POINT,
        "Iallreduce": "Allreduce",
        "Bcast": "Bcast",
        "Comm_rank": LOCAL,
        "Type_commit": LOCAL,
        "Send_init": LOCAL,
        "Init": LOCAL,
        "Comm_dup": "",
        "Start": "",
        "File_read": "",
    }.items():
        assert group_of(call) == group
    assert sends("Isend")
    assert not sends("Irecv")


def rule_lines(text: str) -> list[str]:
    lines = [line for line in dict.fromkeys(text.split("\n")) if line.strip()]
    return random.Random(1).sample(lines, min(10, len(lines)))


@pytest.mark.parametrize("name", [*GOOD, "openmpi-monitoring"])
def test_readers_are_linear(name: str) -> None:
    """A long line after each of some lines of a good profile, and for every rule of its reader."""
    text = GOOD.get(name, COUNTS[0])
    rules = [rule.pattern.match for reader in READERS.values() for rule in reader.rules]

    def match(line: str) -> None:
        for rule in rules:
            rule(line)

    for line in rule_lines(text):
        before, _, after = text.partition(f"{line}\n")
        for way in hostile_lines(line):
            assert_linear(match, grown(*way), LONG // 2)
        begin, piece, end = next(iter(hostile_lines(line)))
        assert_linear(read, grown(f"{before}{begin}", piece, f"{end}\n{after}"), LONG)


@pytest.mark.parametrize("line", ["<func " + ">" * 9, "<hent a", '<hent a="', "<task ><"])
def test_elements_are_linear(line: str) -> None:
    for piece in (">", "a", 'a="', " ", "<"):
        assert_linear(read, grown(f"<ipm_job_profile>\n{line}", piece, "\n"), LONG)


@given(
    st.sampled_from([*GOOD.values(), *COUNTS]),
    st.integers(0, 20_000),
    st.integers(0, 200),
    st.text('\n \t9a#@<>"=,*-', max_size=8),
)
@settings(max_examples=200, deadline=None)
def test_a_cut_or_changed_profile_is_read_or_refused(
    text: str, at: int, gone: int, new: str
) -> None:
    changed = text[:at] + new + text[at + gone :]
    refused = ""
    try:
        read(changed)
    except LogError as error:
        refused = str(error)
    assert re.match(r"(?:f:\d+: |$)", refused)


def test_the_files_are_those_of_the_table() -> None:
    listed = (Path(DATA) / "README.md").read_text()
    for path in (*PROFILES.glob("*.*"), PROFILES / "openmpi-monitoring"):
        assert f"`{path.name}" in listed
