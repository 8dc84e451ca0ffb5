# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.advise.adapters import ADAPTERS
from nearmetal.advise.cards import CARDS
from nearmetal.advise.needs import (
    Fabric,
    Messages,
    Needs,
    Platform,
    load_trace,
    parse_version,
    profile,
)
from nearmetal.advise.rank import Advice, advise
from nearmetal.advise.tax import PUBLISHED, Tax, load_measured, slowdown_share
from nearmetal.cli.main import main
from nearmetal.core.errors import NearmetalError


def order(advice: Advice) -> list[str]:
    return [option.adapter.name for option in advice.options]


def refusal(advice: Advice, name: str) -> str:
    [reasons] = [reasons for adapter, reasons in advice.refused if adapter.name == name]
    return "; ".join(f"{r.why} ({r.source}) unless {r.unless}" for r in reasons)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [("6.7", "6.12"), ("8.0", "8.0U2"), ("8.0U2", "8.0u3"), ("7.0.3", "8.0"), ("8.1.4", "8.2")],
)
def test_versions_are_compared_number_by_number(earlier: str, later: str) -> None:
    assert parse_version(earlier) < parse_version(later)


def test_equal_versions_are_equal() -> None:
    assert parse_version("8.0") == parse_version("8") == parse_version("8.0.0")
    assert parse_version("7.0U3") == parse_version("7.0.3")


@pytest.mark.parametrize("text", ["", "8.", "v8", "8.0 U2", "8.0-rc1", "1.2.3.4.5", "9" * 50])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a version"):
        parse_version(text)


def test_every_adapter_is_either_ranked_or_refused_with_reasons() -> None:
    advice = advise(Needs(platform=Platform.VSPHERE, fabric=Fabric.ROCE))
    names = order(advice) + [adapter.name for adapter, _ in advice.refused]
    assert sorted(names) == sorted(adapter.name for adapter in ADAPTERS)
    for _, reasons in advice.refused:
        assert reasons
        assert all(r.why and r.source and r.unless for r in reasons)
    assert all(option.overturn and option.why for option in advice.options)


# Table 2 of VMW-ADAPTER, by its own rows.
@pytest.mark.parametrize(
    ("need", "allowed"),
    [
        ({"live_migration": True}, {"vmxnet3", "pvrdma", "dvx"}),
        ({"snapshots": True}, {"vmxnet3", "pvrdma", "dvx"}),
        ({"drs": True, "vsphere": "7.0"}, {"vmxnet3", "pvrdma", "dynamic-directpath"}),
        ({"drs": True, "vsphere": "8.0U1"}, {"vmxnet3", "pvrdma", "dynamic-directpath", "dvx"}),
        (
            {"drs": True, "vsphere": "8.0U2"},
            {"vmxnet3", "pvrdma", "dynamic-directpath", "dvx", "sriov"},
        ),
        ({"vms_per_adapter": 2}, {"vmxnet3", "pvrdma", "sriov", "dvx"}),
        ({"fabric": "ib"}, {"directpath", "dynamic-directpath", "sriov", "dvx"}),
        ({"fabric": "roce"}, {"pvrdma", "directpath", "dynamic-directpath", "sriov", "dvx"}),
        ({"vsphere": "6.7"}, {"vmxnet3", "pvrdma", "directpath", "sriov"}),
    ],
)
def test_hard_conditions_on_vsphere(need: dict[str, Any], allowed: set[str]) -> None:
    needs = Needs.model_validate({"platform": Platform.VSPHERE, **need}, strict=False)
    assert set(order(advise(needs))) == allowed


def test_a_vf_migrates_only_over_ethernet_with_new_software() -> None:
    told = {"platform": Platform.KVM, "live_migration": True}
    new = {"kernel": "6.12", "qemu": "10.0", "libvirt": "11.3"}
    assert "vfio-vf" in order(advise(Needs.model_validate(told | new | {"fabric": "roce"})))
    over_ib = advise(Needs.model_validate(told | new | {"fabric": "ib"}))
    assert not over_ib.options
    assert "only with mlx5 in Ethernet mode" in refusal(over_ib, "vfio-vf")
    assert "suspend at MPI level" in refusal(over_ib, "vfio-vf")
    old = advise(Needs.model_validate(told | new | {"fabric": "roce", "qemu": "7.2"}))
    assert "live migration needs QEMU 8.1, not 7.2" in refusal(old, "vfio-vf")


def test_an_unknown_version_is_something_to_check_and_refuses_nothing() -> None:
    advice = advise(Needs(platform=Platform.VSPHERE, drs=True))
    [sriov] = [option for option in advice.options if option.adapter.name == "sriov"]
    assert any(check.startswith("vSphere 8.0U2 or later") for check in sriov.checks)


def test_many_ranks_with_small_messages_rule_pvrdma_out() -> None:
    told = {"platform": Platform.VSPHERE, "ranks_per_node": 36}
    small = advise(Needs.model_validate(told | {"messages": "small"}))
    assert "20 ranks a node, not 36" in refusal(small, "pvrdma")
    large = advise(Needs.model_validate(told | {"messages": "large"}))
    [pvrdma] = [option for option in large.options if option.adapter.name == "pvrdma"]
    assert any("you have 36" in caution for caution in pvrdma.cautions)


def test_passthrough_stands_before_tcp_and_rare_things_last() -> None:
    names = order(advise(Needs(platform=Platform.VSPHERE, vsphere="8.0U2")))
    assert names.index("sriov") < names.index("pvrdma") < names.index("vmxnet3")
    assert names[-1] == "dvx"


def test_a_measurement_of_all_that_fit_decides_their_order() -> None:
    needs = Needs(platform=Platform.VSPHERE, fabric=Fabric.IB, vsphere="7.0", vms_per_adapter=1)
    assert order(advise(needs))[0] == "dynamic-directpath"

    def measured(name: str, low: float, high: float) -> Tax:
        return Tax(name, "", "app", low, high, None, "measured", "study 7")

    taxes = [
        measured("directpath", 0.01, 0.02),
        measured("dynamic-directpath", 0.2, 0.3),
        measured("sriov", 0.01, 0.03),
    ]
    advice = advise(needs, taxes)
    # The two that are within two percent of each other go by what they keep.
    assert order(advice) == ["sriov", "directpath", "dynamic-directpath"]
    assert "at most 3.0% measured here" in advice.options[0].why
    # One that was not measured: classes decide again, and its numbers are still shown.
    partly = advise(needs, taxes[:2])
    assert order(partly)[0] == "dynamic-directpath"
    assert {tax.origin for tax in partly.options[0].taxes} == {"measured"}


def test_other_core_counts_give_both_ends() -> None:
    [tax] = [t for t in PUBLISHED if (t.adapter, t.fabric, t.workload) == ("sriov", "ib", "NAMD")]
    assert tax.low == tax.high == pytest.approx(0.094)
    assert tax.with_core_loss(4 / 48) == pytest.approx((0.094, 0.094))
    low, high = tax.with_core_loss(0.0)
    assert (low, high) == pytest.approx((1 - 0.906 * 48 / 44, 0.094))
    assert tax.with_core_loss(8 / 48)[1] == pytest.approx(1 - 0.906 * 40 / 44)
    assert Tax("sriov", "", "x", 0.1, 0.2, None, "measured", "").with_core_loss(0.5) == (0.1, 0.2)


def test_a_longer_run_is_a_smaller_loss() -> None:
    assert slowdown_share(0.15) == pytest.approx(0.1304, abs=1e-4)
    assert slowdown_share(0.0) == 0


@given(
    st.builds(
        Needs,
        platform=st.sampled_from([Platform.VSPHERE, Platform.ANY]),
        fabric=st.sampled_from(Fabric),
        messages=st.none() | st.sampled_from(Messages),
        live_migration=st.booleans(),
        snapshots=st.booleans(),
        ha=st.booleans(),
        drs=st.booleans(),
        vms_per_adapter=st.integers(1, 9),
        ranks_per_node=st.none() | st.integers(1, 200),
        adapter=st.none() | st.sampled_from([card.name for card in CARDS]),
    )
)
def test_more_needs_never_allow_more(needs: Needs) -> None:
    names = set(order(advise(needs)))
    harder = needs.model_copy(update={"live_migration": True, "vms_per_adapter": 10})
    assert set(order(advise(harder))) <= names
    assert len(names) + len(advise(needs).refused) == len(ADAPTERS)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([(8, 90), (1 << 20, 10)], Messages.SMALL),
        ([(8, 89), (1 << 20, 11)], Messages.LARGE),
        ([(2048, 1000), (65536, 10)], Messages.MIXED),
    ],
)
def test_the_profile_of_messages(messages: list[tuple[int, int]], expected: Messages) -> None:
    assert profile(messages) is expected


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        (b"", ":1: ", "wrong columns"),
        (b"size,count\n1,2\n", ":1: ", "wrong columns"),
        (b"size_B,count\n1,2\n3\n", ":3: ", "1 columns, not 2"),
        (b"size_B,count\n1,-2\n", ":2: ", "not a size and a count"),
        (b"size_B,count\n1,2.5\n", ":2: ", "not a size and a count"),
        (b"size_B,count\n1,2,3\n", ":2: ", "3 columns, not 2"),
        (b"size_B,count\n1,99999999999999999999999\n", ":2: ", "not a size and a count"),
        (b"size_B,count\n1,0\n", ": ", "no messages"),
        (b"size_B,count\n\xff\n", ":2: ", "not UTF-8"),
    ],
)
def test_a_wrong_trace_is_named_with_its_line(
    tmp_path: Path, content: bytes, where: str, what: str
) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(NearmetalError, match=what) as caught:
        load_trace(path)
    assert f"trace.csv{where}" in caught.value.message
    assert caught.value.hint


HEADER = "adapter,workload,tax_low_percent,tax_high_percent,source\n"


def test_measured_taxes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text(HEADER + "sriov,LAMMPS,-0.5,1.5,study 7\n\n")
    [tax] = load_measured(path)
    assert (tax.adapter, tax.low, tax.high) == ("sriov", -0.005, 0.015)
    assert (tax.origin, tax.source) == ("measured", "study 7")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "m.csv:1: wrong columns"),
        (HEADER + "sriov,x,1\n", "m.csv:2: 3 columns, not 5"),
        (HEADER + "sriov,x,1,2,s\nsrivo,x,1,2,s\n", "m.csv:3: no adapter 'srivo'"),
        (HEADER + "sriov,x,1,two,s\n", "m.csv:2: '1' to 'two' is not a range"),
        (HEADER + "sriov,x,3,2,s\n", "m.csv:2: 3 to 2 % is not a range"),
        (HEADER + "sriov,x,1,nan,s\n", "m.csv:2: 1 to nan % is not a range"),
        (HEADER + "sriov,x,1,100,s\n", "m.csv:2: 1 to 100 % is not a range"),
    ],
)
def test_wrong_measured_taxes_are_named_with_their_line(
    tmp_path: Path, text: str, what: str
) -> None:
    path = tmp_path / "m.csv"
    path.write_text(text)
    with pytest.raises(NearmetalError) as caught:
        load_measured(path)
    assert what in caught.value.message


def test_the_command_line_joins_file_and_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs = tmp_path / "needs.yaml"
    needs.write_text("platform: vsphere\nfabric: ib\ncores: 48\nreserved_cores: 4\n")
    assert main(["advise", str(needs), "--fabric", "roce", "--vsphere", "7.0", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["core_loss"] == pytest.approx(4 / 48)
    assert "pvrdma" in [option["adapter"] for option in data["options"]]
    assert {"adapter", "reasons"} <= set(data["refused"][0])
    assert main(["advise", "--platform", "kvm", "--fabric", "ib", "--snapshots"]) == 4
    assert "no adapter meets" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["--vsphere", "eight"], 2, "--vsphere: 'eight' is not a version"),
        (["--platform", "kvm", "--vsphere", "8.0"], 2, "on kvm no adapter depends on vsphere"),
        (["--reserved-cores", "4"], 2, "reserved_cores needs cores"),
        (["--cores", "48"], 2, "cores needs reserved_cores"),
        (["--adapter", "X710"], 2, "--adapter: no facts about the card 'X710'"),
        (["--cores", "4", "--reserved-cores", "4"], 2, "reserved_cores needs cores"),
        (["--vms-per-adapter", "0"], 2, "--vms-per-adapter: "),
        (["no-such-file.yaml"], 1, "cannot read no-such-file.yaml"),
        (["--trace", "no-such-file.csv"], 1, "cannot read no-such-file.csv"),
        (["--trace", "x", "--messages", "small"], 2, "contradict each other"),
    ],
)
def test_wrong_words_are_explained(
    words: list[str], code: int, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", *words]) == code
    assert what in capsys.readouterr().err


def test_a_wrong_file_of_needs_has_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "needs.yaml"
    path.write_text("platform: vsphere\nfabrik: ib\nvms_per_adapter: 0\n")
    assert main(["advise", str(path)]) == 1
    said = capsys.readouterr().err
    assert "needs.yaml:2:1: unknown key 'fabrik'" in said
    assert "did you mean 'fabric'?" in said
    assert "needs.yaml:3:" in said
