# SPDX-License-Identifier: Apache-2.0
"""Three arms as in VMW-GDR: host memory, GPU memory that is staged, and GPUDirect. Logs to verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nearmetal.cli.main import main
from nearmetal.evidence import parse_log

SIZES = [1 << n for n in range(23)]
HUNG_AFTER = 8192
LABELS = """\
format: 1
run: gdr
arms:
  host: {{platform: metal, fabric: IB, placement: far, facts: {{line_rate_gbit: 56{none}}}}}
  staged: {{platform: metal, fabric: IB, placement: far, facts: {{line_rate_gbit: 56{staged}}}}}
  direct: {{platform: metal, fabric: IB, placement: far, facts: {{line_rate_gbit: 56{direct}}}}}
sources:
  - path: "{{arm}}/{{_}}-{{launch}}.out"
    nodes: 2
"""
PLACES = {"host": "HOST (H)", "staged": "DEVICE (D)", "direct": "DEVICE (D)"}
START_US = {"host": 1.5, "staged": 15.0, "direct": 5.0}


def osu(arm: str, name: str, launch: int, *, slow: float = 1.0) -> str:
    """Return a log of `osu_NAME -d cuda`; staged ones end where those of VMW-GDR hung."""
    place, title = PLACES[arm], {"latency": "Latency", "bw": "Bandwidth"}[name]
    lines = [f"# OSU MPI-CUDA {title} Test v5.8"]
    lines.append(f"# Send Buffer on {place} and Receive Buffer on {place}")
    lines.append(
        "# Size          Latency (us)" if name == "latency" else "# Size    Bandwidth (MB/s)"
    )
    factor = (slow if arm == "direct" else 1.0) * (1 + launch / 2000)
    for size in SIZES:
        if arm == "staged" and size > HUNG_AFTER:
            break
        latency = (START_US[arm] + size / 1e6) * factor
        value = latency if name == "latency" else size / latency * 8
        lines.append(f"{size:<10d}{value:>18.4f}")
    return "\n".join(lines) + "\n"


def perftest(arm: str, launch: int, *, old: bool = False) -> str:
    """Return a log of `ib_write_bw`: the lines of `--use_cuda` are those that users published.

    linux-rdma/perftest, issue 241 (2024, an A30), and pull request 21 (2018, a V100).
    """
    new = [
        "Perftest doesn't supports CUDA tests with inline messages: inline size set to 0",
        "initializing CUDA",
        "Listing all CUDA devices in system:",
        "CUDA device 0: PCIe address is 17:00",
        "CUDA device 1: PCIe address is 65:00",
        "",
        "Picking device No. 0",
        "[pid = 3669, dev = 0] device name = [NVIDIA A30]",
    ]
    before = [
        "initializing CUDA",
        "There are 4 devices supporting CUDA, picking first...",
        "[pid = 7722, dev = 0] device name = [Tesla V100-SXM2-32GB]",
    ]
    after = [
        "creating CUDA Ctx",
        "making it the current CUDA Ctx",
        "cuMemAlloc() of a 131072 bytes GPU buffer",
        "allocated GPU buffer address at 000001001e000000 pointer=0x1001e000000",
    ]
    dashes = "-" * 87
    settings = [
        dashes,
        "                    RDMA_Write BW Test",
        " Dual-port       : OFF\t\tDevice         : mlx5_0",
        " Number of qps   : 1\t\tTransport type : IB",
        " Connection type : RC\t\tUsing SRQ      : OFF",
        " CQ Moderation   : 100",
        " Mtu             : 4096[B]",
        " Link type       : IB",
        " Max inline data : 0[B]",
        dashes,
        " local address: LID 0x01 QPN 0x00e2 PSN 0x7f3b1d RKey 0x00773c VAddr 0x0001001e010000",
        " remote address: LID 0x02 QPN 0x00e2 PSN 0x14accf RKey 0x0041ac VAddr 0x0001001e010000",
        dashes,
        " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]",
    ]
    rate = (6000 if arm == "host" else 5800) * (1 + launch / 5000)
    row = f" 65536      5000             {rate:.2f}            {rate - 1:.2f}    {(rate - 1) / 65536 * 1.048576:.6f}"
    gpu = [] if arm == "host" else [*(before if old else new), *after]
    return "\n".join([*gpu, *settings, row, dashes]) + "\n"


def study(folder: Path, facts: bool, *, slow: float = 1.0, tool: str = "osu") -> Path:
    for arm in PLACES:
        place = folder / "logs" / arm
        place.mkdir(parents=True)
        for launch in range(1, 9):
            if tool == "perftest" and arm != "staged":
                (place / f"write-{launch}.out").write_text(perftest(arm, launch))
            for name in ("latency", "bw") if tool == "osu" else ():
                (place / f"{name}-{launch}.out").write_text(osu(arm, name, launch, slow=slow))
    texts = {way: f", gpu: {way}" if facts else "" for way in ("none", "staged", "direct")}
    (folder / "logs" / "study-labels.yaml").write_text(LABELS.format(**texts))
    assert main(["study", "import", str(folder / "logs"), "--output", str(folder / "s")]) == 0
    return folder / "s"


def judged(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    """Return the data and the text of `study judge`."""
    capsys.readouterr()
    main(["study", "judge", *words, "--json"])
    data = json.loads(capsys.readouterr().out)
    main(["study", "judge", *words])
    return data, capsys.readouterr().out


def test_staged_against_direct_and_where_the_staged_runs_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = str(study(tmp_path, facts=True))
    _, text = judged(capsys, made, "staged", "direct")
    rows = {tuple(line.split()[:2]): line for line in text.replace("=", " ").splitlines()}
    assert "0.333" in rows["osu_latency", "8"]
    assert "3.000" in rows["osu_bw", "8"]
    for test in ("osu_latency", "osu_bw"):
        metric = test.replace("osu_bw", "bandwidth").removeprefix("osu_")
        assert f"only direct: {test}, cuda, D D, {metric}, 16 KiB to 4 MiB (9 sizes)" in text
    assert "staged lacks this size" in text


def test_host_against_gpu_is_compared_only_if_the_labels_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = str(study(tmp_path / "plain", facts=False))
    _, text = judged(capsys, plain, "host", "direct")
    assert "REFUSED" in text
    assert "the place of the buffers: H H against D D" in text
    said = str(study(tmp_path / "said", facts=True))
    _, text = judged(capsys, said, "host", "direct")
    assert "REFUSED" not in text
    assert "3.333" in next(
        line for line in text.splitlines() if line.split()[1:3] == ["osu_latency", "8"]
    )


def test_a_run_that_forgot_its_gpu_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of `osu_latency` without `D D` in the folder of an arm with a GPU."""
    monkeypatch.setitem(PLACES, "direct", PLACES["host"])
    made = str(study(tmp_path, facts=True))
    _, text = judged(capsys, made, "staged", "direct")
    assert "REFUSED" in text
    assert "the place of the buffers: D D against H H" in text


def test_the_claims_of_the_paper_are_tested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roles = ["--arm", "staged-ib=staged", "--arm", "direct-ib=direct"]
    for name, slow, code, verdict in (("good", 1.0, 0, "CONFIRMED"), ("bad", 2.0, 4, "REFUTED")):
        made = study(tmp_path / name, facts=True, slow=slow)
        capsys.readouterr()
        assert main(["study", "reproduce", "vmw-gdr", str(made), *roles, "--json"]) == code
        found = {c["id"]: c for c in json.loads(capsys.readouterr().out)["claims"]}
        outcomes = {key: claim["outcome"] for key, claim in found.items()}
        for key in ("latency-ib", "latency-direct-ib", "bandwidth-ib"):
            assert outcomes[key] == verdict, (key, found[key]["reason"])
        assert outcomes["latency-staged-ib"] == "CONFIRMED"
        assert outcomes["latency-roce"] == outcomes["vm-latency-direct-ib"] == "CANNOT TEST"
        main(["study", "reproduce", "vmw-gdr", str(made), *roles])
        text = capsys.readouterr().out
        assert "GPUDirect RDMA is able to achieve a 3X improvement" in text
        assert verdict in text


def test_host_memory_confirms_no_claim_about_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs of the right latency, whose buffers are in the memory of the host."""
    for arm in ("staged", "direct"):
        monkeypatch.setitem(PLACES, arm, PLACES["host"])
    made = study(tmp_path, facts=True)
    capsys.readouterr()
    roles = ["--arm", "staged-ib=staged", "--arm", "direct-ib=direct"]
    main(["study", "reproduce", "vmw-gdr", str(made), *roles, "--json"])
    claims = json.loads(capsys.readouterr().out)["claims"]
    assert {claim["outcome"] for claim in claims} == {"CANNOT TEST"}
    assert any("missing: osu_latency D D (latency)" in claim["reason"] for claim in claims)


@pytest.mark.parametrize("old", [False, True])
def test_perftest_with_a_gpu_says_where_its_buffers_are(old: bool) -> None:
    found = parse_log(perftest("direct", 1, old=old), "f", "perftest")
    (table,) = found.tables
    assert table.setup.buffers == "GPU"
    assert "cuda" not in table.setup.flags.lower()
    (plain,) = parse_log(perftest("host", 1), "f", "perftest").tables
    assert plain.setup.buffers == ""
    assert plain.setup.flags == table.setup.flags


def test_perftest_without_and_with_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = str(study(tmp_path, facts=True, tool="perftest"))
    _, text = judged(capsys, made, "host", "direct")
    assert "REFUSED" not in text
    assert "0.967" in text
