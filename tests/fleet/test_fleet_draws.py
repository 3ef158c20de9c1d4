"""What is drawn for a fleet: keyed by client, alike in every order of questions, cheap
by the million.
"""

from __future__ import annotations

import numpy as np
import pytest
import worlds
from hypothesis import given
from hypothesis import strategies as st

from simfed import InputError
from simfed.fleet import Fleet
from simfed.fleet.columns import FIELDS
from simfed.ground import Streams
from simfed.scenario import validate_scenario

SPEED = {"lognormal": {"median": 0.3, "cv": 0.5}}
UP = {"lognormal": {"median": "10 Mbps", "cv": 0.8, "low": "1 Mbps"}}
TABLE = (
    "name,score,up_mbps,rtt_ms,share\na,0.2,2,50,8\nb,0.5,6,20,4\n"
    "c,1.0,15,10,0\nd,2.0,40,5,1\n"
)


def group(count=4, **keys):
    device = {"profile": "x86-2core-vm", **keys.pop("device", {})}
    return {"count": count, "prototype": "p", "device": device, "link": {}, **keys}


def scenario(*groups, folder, **keys):
    data = {
        "name": "n",
        "rounds": 2,
        "dataset": {"name": "mnist-mini"},
        "prototypes": {"p": {"model": "lenet5-half"}},
        "clients": list(groups),
        "policy": {"kind": "uniform", "strategy": "top-k"},
        **keys,
    }
    return validate_scenario(data, source="s", folder=folder)


@pytest.fixture
def fleet(tmp_path):
    def make(*groups, **keys):
        made = scenario(*groups, folder=tmp_path, **keys)
        return Fleet(made, Streams(made.seed))

    (tmp_path / "t.csv").write_text(TABLE)
    return make


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, 3),
)
def test_a_draw_hangs_on_seed_field_and_client_alone(
    tmp_path_factory, counts, turns, seed
):
    """Whatever groups there are, in whatever order: client i of any group has the i-th
    draw.
    """
    order = "round-robin" if turns else "grouped"
    groups = [group(count, device={"speed": SPEED}) for count in counts]
    made = scenario(
        *groups, folder=tmp_path_factory.getbasetemp(), client_order=order, seed=seed
    )
    mixed = Fleet(made, Streams(seed))
    one = scenario(group(sum(counts), device={"speed": SPEED}), folder=".", seed=seed)
    alone = Fleet(one, Streams(seed))
    assert [mixed.speed(c) for c in range(sum(counts))] == [
        alone.speed(c) for c in range(sum(counts))
    ]


def test_a_client_keeps_its_rank_in_a_group_with_another_law(fleet):
    slow, fast = (
        fleet(group(50, device={"speed": {"lognormal": {"median": median, "cv": 0.5}}}))
        for median in (0.1, 3)
    )
    a, b = slow.drawn(0, "device.speed"), fast.drawn(0, "device.speed")
    assert b == pytest.approx(30 * a)


def test_fields_and_seeds_are_independent(fleet):
    law = {"uniform": {"low": 1, "high": 2}}
    rate = {"uniform": {"low": "1 Mbps", "high": "2 Mbps"}}
    n = 20_000
    made = fleet(group(n, device={"speed": law}, link={"up": rate, "down": rate}))
    other = fleet(group(n, device={"speed": law}), seed=1)
    columns = [made.drawn(0, f) for f in ("device.speed", "link.up", "link.down")]
    columns.append(other.drawn(0, "device.speed"))
    off = np.abs(np.corrcoef(columns) - np.eye(4)).max()
    assert off < 4.5 / np.sqrt(n)  # six pairs at 4.5 standard errors: p < 5e-5


WRITTEN = {
    "device.speed": (0.5, 0.5),
    "link.rate": ("24 Mbps", 3e6),
    "link.up": ("8 Mbps", 1e6),
    "link.down": ("16 Mbps", 2e6),
    "link.latency": ("20 ms", 0.02),
    "link.down_latency": ("1 s", 1.0),
    "link.loss": (0.25, 0.25),
    "availability.markov.on": ("2 h", 7200.0),
    "availability.markov.off": ("8 h", 28_800.0),
    "k": (7, 7.0),
}
HOME = {"network.cells.home.wifi.standard": "n", "clients[0].link.cell": "home"}
BESIDE = {
    "link.rate": HOME,
    "link.loss": {"network.model": "tcp"},
    "availability.markov.on": {"clients[0].availability.markov.off": "1 h"},
    "availability.markov.off": {"clients[0].availability.markov.on": "1 h"},
    **{key: {"clients[0].device": {}} for key in FIELDS if ".assume." in key},
}


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_may_be_drawn(field):
    written, value = WRITTEN.get(field, ("3 ms", 0.003))
    law = {f"clients[0].{field}": {"choice": {"values": [written]}}}
    made = Fleet(worlds.world("tiny", {**BESIDE.get(field, {}), **law}), Streams(0))
    assert set(made.drawn(0, field).tolist()) == {value}
    if ".assume." in field:
        assert made.times(0) == {field.rpartition(".")[2]: value}


def test_what_is_fixed_has_a_column_too_but_for_no_loss(fleet):
    links = [{"up": "8 Mbps", "loss": 0.25}, {"down": "16 Mbps", "loss": 0}]
    made = fleet(*(group(2, link=link) for link in links), network={"model": "tcp"})
    columns = {
        (c.group, c.field): c.values.tolist()
        for c in made.columns({"p": 1000})
        if not c.drawn
    }
    assert [
        values for (_, field), values in columns.items() if field == "link.loss"
    ] == [[0.25]]
    assert columns[0, "link.loss"] == [0.25]
    assert columns[0, "link.up"] == [1e6]
    assert columns[1, "link.up"] == columns[0, "link.down"] == [np.inf]


def test_rows_of_a_table_of_devices_stay_together(fleet):
    made = fleet(
        group(
            400,
            devices={"table": "t.csv", "weights": "share"},
            device={"speed": {"column": "score"}},
            link={
                "up": {"column": "up_mbps", "unit": "Mbps"},
                "latency": {"column": "rtt_ms", "unit": "ms"},
                "down": {"table": "t.csv", "column": "up_mbps", "unit": "Mbps"},
            },
        )
    )
    speed, up, latency, down = (
        made.drawn(0, f)
        for f in ("device.speed", "link.up", "link.latency", "link.down")
    )
    rows = {(0.2, 2e6, 0.05), (0.5, 6e6, 0.02), (2.0, 40e6, 0.005)}  # c has no weight
    drawn = set(
        zip(speed.tolist(), (up * 8).round(3).tolist(), latency.tolist(), strict=True)
    )
    assert drawn == rows
    assert abs((speed == 0.2).mean() - 8 / 13) < 4.5 * np.sqrt(8 / 13 * 5 / 13 / 400)
    # a table of its own: any row
    assert len(set(zip(up.tolist(), down.tolist(), strict=True))) > 4


def test_k_as_a_share_is_one_of_the_prototypes_parameters(fleet):
    made = fleet(
        group(1, k="1%"),
        group(1),
        group(1, k={"choice": {"values": [10**6]}}),
        compression={"k": "0.0001%"},
    )
    assert [made.k(c, 15_738) for c in range(3)] == [157, 1, 15_738]
    assert [made.k(c, 61_706) for c in range(3)] == [617, 1, 61_706]
    assert made.range_of_k(0, 61_706) == (617, 617)
    assert made.range_of_k(2, 61_706) == (61_706, 61_706)


def test_drawn_entries_are_whole_and_at_least_1(fleet):
    made = fleet(group(1000, k={"lognormal": {"median": 2, "cv": 2}}))
    ks = made.drawn(0, "k")
    assert ks.min() == 1
    assert (ks == np.rint(ks)).all()
    assert made.range_of_k(0, 10) == (1, 10)


@pytest.mark.parametrize(
    ("speed", "sentence"),
    [
        (
            {"table": "t.csv", "column": "share"},
            "line 4, column share: got '0', expected a column of which every value is "
            "a number above 0",
        ),
        (
            {"table": "t.csv", "column": "name"},
            "line 2, column name: got 'a', expected a finite number",
        ),
        (
            {"table": "w.csv", "column": "a", "weights": "b"},
            "line 2, column b: got '0', expected weights of at least 0, one of them "
            "above 0",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_one_sentence(fleet, tmp_path, speed, sentence):
    (tmp_path / "w.csv").write_text("a,b\n1,0\n2,0\n")
    made = fleet(group(4000, device={"speed": speed}))
    with pytest.raises(InputError) as refused:
        made.speed(0)
    assert str(refused.value).startswith("clients[0].device.speed: ")
    assert sentence in str(refused.value)
