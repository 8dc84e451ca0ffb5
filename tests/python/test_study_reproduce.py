# SPDX-License-Identifier: Apache-2.0
"""Published claims as tests fixed beforehand: limits from the published numbers, outcomes from data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nearmetal.cli.main import main
from nearmetal.evidence.published import find
from nearmetal.study.reproduce.claims import CLAIMED, Claim, ClaimKind, claims_of, roles_of

LABELS = """\
format: 1
run: made
arms:
  metal: {platform: bare metal, fabric: InfiniBand, placement: far, facts: {line_rate_gbit: 40}}
  vm: {platform: VM, fabric: InfiniBand, placement: far,
       facts: {line_rate_gbit: 40, role: sr-iov-ib}}
sources:
  - path: "{arm}/{_}-{launch}.out"
    nodes: 2
"""
SIZES = [1 << i for i in range(23)]


def latency(factor: float, launch: int) -> str:
    rows = "".join(
        f"{s:<10d}{(1.2 + s / 4000) * factor * (1 + launch / 2000):>18.4f}\n" for s in SIZES
    )
    return f"# OSU MPI Latency Test v7.2\n# Size          Latency (us)\n{rows}"


def bandwidth(factor: float, launch: int) -> str:
    rows = "".join(
        f"{s:<10d}{4900 * s / (s + 3000) * factor * (1 + launch / 9000):>18.4f}\n" for s in SIZES
    )
    return f"# OSU MPI Bandwidth Test v7.2\n# Size      Bandwidth (MB/s)\n{rows}"


def study(folder: Path, slower: float, narrower: float, launches: int = 12) -> Path:
    for arm, factors in (("metal", (1.0, 1.0)), ("vm", (slower, narrower))):
        (folder / "logs" / arm).mkdir(parents=True)
        for launch in range(1, launches + 1):
            place = folder / "logs" / arm
            (place / f"latency-{launch}.out").write_text(latency(factors[0], launch))
            (place / f"bw-{launch}.out").write_text(bandwidth(factors[1], launch))
    (folder / "logs" / "study-labels.yaml").write_text(LABELS)
    assert main(["study", "import", str(folder / "logs"), "--output", str(folder / "s")]) == 0
    return folder / "s"


def outcomes(words: list[str], capsys: pytest.CaptureFixture[str], code: int) -> dict[str, dict]:  # type: ignore[type-arg]
    capsys.readouterr()
    assert main(["study", "reproduce", *words, "--json"]) == code
    return {claim["id"]: claim for claim in json.loads(capsys.readouterr().out)["claims"]}


@pytest.mark.parametrize("name", CLAIMED)
def test_every_claim_is_a_published_number(name: str) -> None:
    claims = claims_of(name)
    assert len(claims) >= 9
    assert len({claim.id for claim in claims}) == len(claims)
    for claim in claims:
        known = find(name, line=claim.line, value=claim.value)
        assert known, f"{claim.id}: {claim.value:g} is not in line {claim.line}"
        assert claim.bound in {"about", "at most", "at least", "reaches"}
        low, high = claim.limits
        assert low is not None or high is not None
        assert low is None or high is None or low < high


def claim(kind: ClaimKind, value: float, bound: str) -> Claim:
    return Claim("x", "x", 1, value, kind, bound, "a", "b", ("t",), ("m",), None, None, None, "")


@pytest.mark.parametrize(
    ("kind", "value", "bound", "low", "high"),
    [
        (ClaimKind.LOSS, 2, "at most", 0.98, None),
        (ClaimKind.HIGHER, 10, "at most", 1 / 1.1, None),
        (ClaimKind.LOSS, 8, "about", 0.90, 0.94),
        (ClaimKind.DIFFERENCE, 1, "at most", 0.99, 1.01),
        (ClaimKind.TIMES, 8, "at least", 8, None),
        (ClaimKind.LOWER, 40, "about", 1 / 0.7, 2.0),
        (ClaimKind.LOWER, 12, "at least", 1 / 0.88, None),
        (ClaimKind.SLOWER, 2, "at least", None, 0.5),
        (ClaimKind.GAIN, 100, "reaches", 1.75, None),
        (ClaimKind.SHARE, 95, "at least", 0.95, None),
        (ClaimKind.SHARE, 40, "at most", None, 0.40),
        (ClaimKind.MICROSECONDS, 0.2, "about", 0.15, 0.25),
    ],
)
def test_limits_follow_from_the_claim(
    kind: ClaimKind, value: float, bound: str, low: float | None, high: float | None
) -> None:
    limits = claim(kind, value, bound).limits
    assert limits.low == pytest.approx(low) if low else limits.low is None
    assert limits.high == pytest.approx(high) if high else limits.high is None


def test_claims_are_confirmed_with_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = study(tmp_path, slower=1.05, narrower=0.99)
    found = outcomes(["sdsc", str(made), "--arm", "native-ib=metal"], capsys, 4)
    assert found["bandwidth"]["outcome"] == "CONFIRMED"
    assert found["latency"]["outcome"] == "CONFIRMED"
    assert found["line-rate"]["outcome"] == "CONFIRMED"
    # 5 % is far from the 30 % that are claimed for small messages.
    assert found["latency-small"]["outcome"] == "REFUTED"
    point = found["bandwidth"]["points"][0]
    path, _, line = point["lines"][0].rpartition(":")
    assert (tmp_path / "logs" / path).read_text().splitlines()[int(line) - 1].split()[0] == "1"


def test_claims_are_refuted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = study(tmp_path, slower=1.4, narrower=0.9)
    found = outcomes(["SDSC", str(made), "--arm", "native-ib=metal"], capsys, 4)
    assert found["bandwidth"]["outcome"] == "REFUTED"
    assert found["latency"]["outcome"] == "REFUTED"
    assert "outside of the limits" in found["latency"]["reason"]


def test_few_launches_settle_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = study(tmp_path, slower=1.05, narrower=0.99, launches=5)
    found = outcomes(["sdsc", str(made), "--arm", "native-ib=metal"], capsys, 0)
    assert found["bandwidth"]["outcome"] == "INCONCLUSIVE"
    assert "5 launches, at least 6 are needed" in found["bandwidth"]["reason"]


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = study(tmp_path, slower=1.05, narrower=0.99)
    found = outcomes(["sdsc", str(made), "--arm", "native-ib=metal"], capsys, 4)
    assert found["wrf"]["outcome"] == "CANNOT TEST"
    assert found["wrf"]["reason"] == "missing: wrf (step_mean), 6 nodes"
    assert "no arm is sr-iov-ethernet" in found["aws-latency"]["reason"]
    for name in CLAIMED:
        found = outcomes([name.upper()], capsys, 0)
        assert {entry["outcome"] for entry in found.values()} == {"CANNOT TEST"}


def test_what_may_not_be_compared_is_not_tested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = study(tmp_path, slower=1.05, narrower=0.99)
    labels = made / "study-labels.yaml"
    labels.write_text(labels.read_text().replace("placement: far, facts", "placement: x, facts"))
    found = outcomes(["sdsc", str(made), "--arm", "native-ib=metal"], capsys, 0)
    assert found["bandwidth"]["outcome"] == "CANNOT TEST"
    assert "the placement" in found["bandwidth"]["reason"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nobody"], 2, "no claims of 'nobody'"),
        (["sdsc", "{study}", "--arm", "x=vm"], 2, "no role 'x'"),
        (["sdsc", "{study}", "--arm", "native-ib=none"], 1, "no arm 'none'"),
        (["sdsc", "{study}", "--arm", "native-ib"], 2, "--arm native-ib"),
    ],
)
def test_wrong_words_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    made = study(tmp_path, slower=1.05, narrower=0.99, launches=1)
    assert main(["study", "reproduce", *(w.format(study=made) for w in words)]) == code
    assert said in capsys.readouterr().err


def test_roles_are_named_once() -> None:
    assert roles_of("osu")[:2] == ("sr-iov", "ivshmem")
