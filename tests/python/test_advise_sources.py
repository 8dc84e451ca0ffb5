# SPDX-License-Identifier: Apache-2.0
"""Each yes and no of the advice cites a place, and the place has the words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import pytest
from pydantic import ValidationError

from nearmetal.advise.adapters import ADAPTERS, AdapterKind
from nearmetal.advise.cards import CARDS, find_card
from nearmetal.advise.figures import FIGURES
from nearmetal.advise.needs import _NOT_ON, Fabric, Messages, Needs, Platform
from nearmetal.advise.rank import _ALIKE, Advice, advise
from nearmetal.evidence.published import adapters
from tests.python.cited_places import stands_at
from tests.python.study_shared import PAPERS

UNSOURCED = "no source says that it does"
CITED = re.compile(r'(?P<work>.+?):(?P<place>[^:"]+) "(?P<words>.+)"')
TEXTS = ("VMW-ADAPTER", "VMW-GDR", "SDSC", "OSU")
ROWS = [tuple(line.split("\t", 2)) for line in (PAPERS / "cited.tsv").read_text().splitlines()[1:]]


def sources(thing: object) -> Iterator[str]:
    """Return each source in a dataclass and in its parts."""
    for field in fields(thing):  # type: ignore[arg-type]
        value = getattr(thing, field.name)
        if field.name == "source" or field.name.endswith("_source"):
            yield value
        for part in value if isinstance(value, tuple) else (value,):
            if is_dataclass(part):
                yield from sources(part)


EVERY = sorted(
    {s for thing in (*ADAPTERS, *CARDS, *FIGURES) for s in sources(thing) if s} | {_ALIKE}
)


@pytest.mark.parametrize("source", EVERY)
def test_the_cited_place_has_the_words(source: str) -> None:
    if source == UNSOURCED:
        return
    match = CITED.fullmatch(source)
    assert match, f"{source}: neither a work, a place and words, nor {UNSOURCED!r}"
    texts = [text for work, place, text in ROWS if (work, place) == (match[1], match[2])]
    assert any(match["words"] in text for text in texts), texts


def test_a_feature_without_a_source_is_refused() -> None:
    for adapter in ADAPTERS:
        for name, ability in adapter.abilities.items():
            assert not (ability.can and ability.source == UNSOURCED), (adapter.name, name)
        assert not (adapter.rdma and adapter.rdma_source == UNSOURCED)
        assert all(gate.source != UNSOURCED for gate in adapter.requires)


def test_excerpts_stand_in_the_lines_of_the_texts() -> None:
    rows = [(work.lower(), int(place), text) for work, place, text in ROWS if work in TEXTS]
    assert len(rows) > 20
    for work, line, text in rows:
        for piece in text.split("\t"):
            assert stands_at(work, line, piece), (work, line, piece)
            assert not stands_at(work, line, piece + "."), "not any words stand there"


def _cells(adapter: AdapterKind) -> dict[str, str]:
    name = {"dvx": ""}.get(adapter.name, adapter.title)
    return {fact.property: fact.printed for fact in adapters() if fact.adapter == name}


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
def test_words_of_the_table_are_of_the_adapters_own_column(adapter: AdapterKind) -> None:
    cells = _cells(adapter)
    of_rows = {"95": "migration", "96": "drs and ha", "98": "shared", "99": "rdma"}
    for source in sources(adapter):
        match = CITED.fullmatch(source or "")
        if match and match["work"] == "VMW-ADAPTER" and match["place"] in of_rows:
            assert match["words"] in cells[of_rows[match["place"]]], source


def names(advice: Advice) -> list[str]:
    return [option.adapter.name for option in advice.options]


NEW = {"kernel": "6.12", "qemu": "10.0", "libvirt": "11.3"}


@pytest.mark.parametrize("model", ["ConnectX-4", "connectx4", "Mellanox CX-4 VPI", "ConnectX-6 Dx"])
def test_a_card_without_migration_is_never_advised_for_it(model: str) -> None:
    asked = {"platform": "kvm", "live_migration": True, "adapter": model}
    for more in ({}, NEW, {"fabric": "roce"}, NEW | {"fabric": "roce"}):
        advice = advise(Needs.model_validate(asked | more))
        assert "vfio-vf" not in names(advice)
        (why,) = [r for adapter, r in advice.refused if adapter.name == "vfio-vf"]
        assert any("whose virtual functions migrate" in reason.why for reason in why)
        kept = advise(Needs.model_validate({"platform": "kvm", "adapter": model} | more))
        (option,) = [o for o in kept.options if o.adapter.name == "vfio-vf"]
        assert "live migration" not in option.why


def test_what_is_certain_stands_before_what_depends_on_an_unknown_card() -> None:
    asked = {"platform": "kvm", "live_migration": True}
    assert names(advise(Needs.model_validate(asked)))[0] == "virtio-net"
    known = asked | NEW | {"adapter": "ConnectX-7"}
    assert names(advise(Needs.model_validate(known)))[0] == "vfio-vf"


def test_a_card_without_the_fabric_refuses_all_of_it() -> None:
    needs = {"platform": "vsphere", "fabric": "ib", "adapter": "ConnectX-6 Lx 25GbE"}
    advice = advise(Needs.model_validate(needs))
    assert not advice.options
    (why,) = [r for adapter, r in advice.refused if adapter.name == "sriov"]
    assert why[0].why == "ConnectX-6 Lx carries roce, not ib"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ConnectX-4 LX", "ConnectX-4 Lx"),
        ("NVIDIA Connect X-3 FDR", "ConnectX-3"),
        ("cx6dx", "ConnectX-6 Dx"),
        ("BlueField 3", "BlueField-3"),
    ],
)
def test_spellings_of_cards(text: str, name: str) -> None:
    assert find_card(text).name == name


VALUES: dict[str, object] = {
    "vsphere": "6.7",
    "kernel": "6.1",
    "qemu": "7.2",
    "libvirt": "8.0",
    "guest_kernel": "4.4",
    "hardware_version": 11,
    "adapter": "ConnectX-4",
    "fabric": "ib",
    "snapshots": True,
    "ha": True,
    "drs": True,
    "vms_per_adapter": 2,
    "ranks_per_node": 36,
    "messages": "small",
}


@pytest.mark.parametrize("platform", [Platform.VSPHERE, Platform.KVM])
@pytest.mark.parametrize("name", VALUES)
def test_an_input_changes_the_advice_or_is_refused(name: str, platform: Platform) -> None:
    base: dict[str, object] = {"platform": platform}
    if name in NEW:
        base |= {"live_migration": True, "fabric": "roce"}
    if name in _NOT_ON[platform]:
        with pytest.raises(ValidationError, match="no adapter depends on"):
            Needs.model_validate(base | {name: VALUES[name]})
        return
    given = Needs.model_validate(base | {name: VALUES[name]})
    assert repr(advise(given)) != repr(advise(Needs.model_validate(base)))


@pytest.mark.parametrize("platform", [Platform.VSPHERE, Platform.KVM])
def test_each_size_of_messages_has_its_own_advice(platform: Platform) -> None:
    kinds = [None, *Messages] if platform is Platform.VSPHERE else [Messages.SMALL, Messages.LARGE]
    found = {repr(advise(Needs(platform=platform, messages=kind))) for kind in kinds}
    assert len(found) == len(kinds)


def test_published_figures_are_shown() -> None:
    def figures(**needs: object) -> list[str]:
        advice = advise(Needs.model_validate({"platform": "vsphere", **needs}))
        (option,) = [option for option in advice.options if option.adapter.name == "pvrdma"]
        assert "no tax of it against bare metal is published" in option.overturn
        return [figure.text for figure in option.figures]

    assert figures(fabric=Fabric.ROCE) == [
        "osu_bw, 1 B: SR-IOV has 8 times the bandwidth",
        "osu_bw, 1 KiB: SR-IOV has 4.1 times the bandwidth",
        "osu_latency, all sizes: about 1.4 times the latency of SR-IOV",
    ]
    assert figures(messages="large") == []
