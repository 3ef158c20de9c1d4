"""What is drawn for a fleet: keyed by client, alike in every order of questions, cheap
by the million.
"""

import numpy as np
import pytest
import worlds
from hypothesis import given
from hypothesis import strategies as st

from simfed.fleet import Fleet
from simfed.fleet.columns import FIELDS
from simfed.ground import Streams

SPEED = {"lognormal": {"median": 0.3, "cv": 0.5}}


def fleet(*groups, **keys):
    """A fleet of these groups of `tiny`."""
    made = worlds.world("tiny", clients=worlds.groups(*groups), **keys)
    return Fleet(made, Streams(made.seed))


def speeds(count, law):
    return {"count": count, "device": {**worlds.DEVICE, "speed": law}}


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, 3),
)
def test_a_draw_hangs_on_seed_field_and_client_alone(counts, turns, seed):
    """Whatever groups there are, in whatever order: client i of any group has the i-th
    draw.
    """
    order = "round-robin" if turns else "grouped"
    groups = [speeds(count, SPEED) for count in counts]
    mixed = fleet(*groups, client_order=order, seed=seed)
    alone = fleet(speeds(sum(counts), SPEED), seed=seed)
    for client in range(sum(counts)):
        assert mixed.speed(client) == alone.speed(client)


def test_a_client_keeps_its_rank_in_a_group_with_another_law():
    slow, fast = (
        fleet(speeds(50, {"lognormal": {"median": median, "cv": 0.5}}))
        for median in (0.1, 3)
    )
    a, b = slow.drawn(0, "device.speed"), fast.drawn(0, "device.speed")
    assert b == pytest.approx(30 * a)


def test_fields_and_seeds_are_independent():
    law = {"uniform": {"low": 1, "high": 2}}
    rate = {"uniform": {"low": "1 Mbps", "high": "2 Mbps"}}
    n = 20_000
    made = fleet({**speeds(n, law), "link": {"up": rate, "down": rate}})
    columns = [made.drawn(0, f) for f in ("device.speed", "link.up", "link.down")]
    columns.append(fleet(speeds(n, law), seed=1).drawn(0, "device.speed"))
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


def test_what_is_fixed_has_a_column_too_but_for_no_loss():
    links = [{"up": "8 Mbps", "loss": 0.25}, {"down": "16 Mbps", "loss": 0}]
    groups = [{"count": 2, "link": link} for link in links]
    made = fleet(*groups, network={"model": "tcp"})
    columns = {
        (c.group, c.field): c.values.tolist()
        for c in made.columns({"a": 1000})
        if not c.drawn
    }
    assert columns[0, "link.loss"] == [0.25]
    assert (1, "link.loss") not in columns
    assert columns[0, "link.up"] == [1e6]
    assert columns[1, "link.up"] == columns[0, "link.down"] == [np.inf]


def test_rows_of_a_table_of_devices_stay_together(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "score,up_mbps,rtt_ms,share\n0.2,2,50,8\n0.5,6,20,4\n1.0,15,10,0\n2.0,40,5,1\n"
    )
    up = {"column": "up_mbps", "unit": "Mbps"}
    made = fleet(
        {
            **speeds(400, {"column": "score"}),
            "devices": {"table": str(path), "weights": "share"},
            "link": {
                "up": up,
                "latency": {"column": "rtt_ms", "unit": "ms"},
                "down": {**up, "table": str(path)},
            },
        }
    )
    speed, up, latency, down = (
        made.drawn(0, f).tolist()
        for f in ("device.speed", "link.up", "link.latency", "link.down")
    )
    # the third row has no weight
    assert {*zip(speed, up, latency, strict=True)} == {
        (0.2, 250e3, 0.05),
        (0.5, 750e3, 0.02),
        (2.0, 5e6, 0.005),
    }
    share = 8 / 13
    assert abs(speed.count(0.2) / 400 - share) < 4.5 * np.sqrt(share * 5 / 13 / 400)
    # a table of its own: any row
    assert len({*zip(up, down, strict=True)}) > 4


def test_k_as_a_share_is_one_of_the_prototypes_parameters():
    groups = {"k": "1%"}, {}, {"k": {"choice": {"values": [10**6]}}}
    made = fleet(*groups, compression={"k": "0.0001%"})
    assert [made.k(c, 15_738) for c in range(3)] == [157, 1, 15_738]
    assert [made.k(c, 61_706) for c in range(3)] == [617, 1, 61_706]
    assert made.range_of_k(0, 61_706) == (617, 617)
    assert made.range_of_k(2, 61_706) == (61_706, 61_706)


def test_drawn_entries_are_whole_and_at_least_1():
    made = fleet({"count": 1000, "k": {"lognormal": {"median": 2, "cv": 2}}})
    ks = made.drawn(0, "k")
    assert ks.min() == 1
    assert (ks == np.rint(ks)).all()
    assert made.range_of_k(0, 10) == (1, 10)
