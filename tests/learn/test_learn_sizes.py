"""Splits of given sizes: sizes, least and classes hold exactly, proportions nearly."""

import re
from collections import Counter

import numpy as np
import pytest
import worlds
import yaml
from hypothesis import given
from hypothesis import strategies as st

from simfed import InputError
from simfed.cli import main
from simfed.experiment import Parts
from simfed.ground import Streams
from simfed.learn import deal
from simfed.learn.data.sizing import Sizing, apportion, deal_table, fit_table
from simfed.replay import learning_key
from simfed.scenario import load_scenario

TEN_EACH = np.repeat(np.arange(10), 100)


def sizes_of(split):
    return [len(samples) for samples in split.clients]


def labels_of(split, labels):
    return [len(np.unique(labels[samples])) for samples in split.clients]


def sized(
    clients, labels=TEN_EACH, seed=0, sizes=None, least=None, classes=None, **more
):
    sizing = Sizing(sizes, least, classes)
    return deal(
        labels, Streams(seed), clients=clients, sizing=sizing, **{"public": 0, **more}
    )


# --- closed cases ---------------------------------------------------------------------


def test_odds_of_the_draw_stay_where_whole_numbers_let_them():
    # [[4, 1], [8, 7]], its rows times 2 and 1/2, its second column times 16/11
    drawn = np.array([[8, 32 / 11], [4, 56 / 11]])
    rng = np.random.default_rng(0)
    table = fit_table(drawn, np.array([5, 15]), np.array([12, 8]), rng)
    assert table.tolist() == [[4, 1], [8, 7]]


def test_odds_of_the_draw_stay_beyond_rounding():
    rng = np.random.default_rng(1)
    drawn = rng.dirichlet(np.full(4, 2.0), 6).T * 100_000
    sizes = np.array([50_000, 300_000, 150_000, 100_000])
    table = fit_table(drawn, sizes, np.full(6, 100_000), rng)
    assert table.sum(axis=1).tolist() == sizes.tolist()
    assert table.sum(axis=0).tolist() == [100_000] * 6
    factors = np.log(table / drawn)
    centred = factors - factors.mean(0) - factors.mean(1, keepdims=True)
    assert abs(centred + factors.mean()).max() < 0.005


def test_a_label_that_does_not_run_short_is_left_alone():
    # nothing runs short: rows keep their own proportions, 3 : 1 and 1 : 1
    drawn = np.array([[60.0, 20.0], [40.0, 40.0]])
    rng = np.random.default_rng(0)
    table = fit_table(drawn, np.array([8, 40]), np.array([100, 60]), rng)
    assert table.tolist() == [[6, 2], [20, 20]]


def test_apportioned_numbers_are_proportional_between_bounds():
    zero = np.zeros(4, int)
    parts = apportion(np.array([1.0, 2, 3, 4]), 20, zero, zero + 20)
    assert parts.tolist() == [2, 4, 6, 8]
    parts = apportion(np.array([1.0, 1, 8, 10]), 20, zero + 3, zero + 8)
    assert parts.tolist() == [3, 3, 6, 8]


def test_equal_sizes_are_those_of_iid():
    assert sizes_of(sized(7, sizes="equal")) == [143] * 6 + [142]
    iid = [sized(7, kind="iid", sizes=sizes) for sizes in (None, "equal")]
    assert all(map(np.array_equal, iid[0].clients, iid[1].clients))
    assert labels_of(iid[0], TEN_EACH) == [10] * 7


def test_sizes_of_iid_and_feature_hold_too():
    for kind in ("iid", "feature"):
        given = sized(3, kind=kind, sizes=np.array([5.0, 700, 20]))
        assert sizes_of(given) == [5, 700, 20]
        between = sizes_of(sized(9, kind=kind, sizes=(10, 90)))
        assert all(10 <= size <= 90 for size in between)
        assert len(set(between)) > 3


def test_bounds_are_drawn_uniformly_and_shrink_where_samples_are_few():
    sizes = np.concatenate(
        [sizes_of(sized(9, sizes=(1, 100), seed=s)) for s in range(60)]
    )
    # 540 draws of mean 50.5 and sd 28.9: within 4 standard errors
    assert abs(sizes.mean() - 50.5) < 4 * 28.9 / np.sqrt(len(sizes))
    tight = sizes_of(sized(10, sizes=(50, 500)))
    assert sum(tight) == 1000
    assert min(tight) >= 50
    assert max(tight) > 100


def test_least_lifts_small_clients_of_dirichlet_and_quantity():
    for kind, more in (("dirichlet", {"alpha": 0.02}), ("quantity", {"sigma": 4.0})):
        before = sizes_of(sized(20, kind=kind, **more))
        lifted = sizes_of(sized(20, kind=kind, least=15, **more))
        assert min(before) < 15 == min(lifted)
        assert sum(lifted) == 1000
        assert max(lifted) > 100


def test_least_leaves_out_small_owners():
    owners = np.repeat([0, 1, 2, 3], [400, 5, 300, 295])
    chosen = {
        tuple(sized(2, seed=s, kind="natural", owners=owners, least=10).owners)
        for s in range(20)
    }
    assert chosen == {(0, 2), (0, 3), (2, 3)}


def test_exact_classes_are_those_of_which_clients_drew_most():
    drawn = np.array([[50.0, 40, 10], [10, 50, 40], [40, 10, 50]])
    rng, stocks = np.random.default_rng(0), np.array([100, 100, 100])
    table = deal_table(drawn, stocks, Sizing(classes=2), "abc", rng)
    # each label in the drawn proportions: 50 : 40
    assert table.tolist() == [[56, 44, 0], [0, 56, 44], [44, 0, 56]]


# --- properties -----------------------------------------------------------------------

SIZES = st.one_of(
    st.none(),
    st.just("equal"),
    st.tuples(st.integers(1, 30), st.integers(1, 60)).map(sorted).map(tuple),
    st.lists(st.integers(1, 40), min_size=12, max_size=12).map(np.array),
)


@given(
    labels=st.lists(st.integers(0, 5), min_size=12, max_size=150).map(np.array),
    clients=st.integers(1, 12),
    public=st.integers(0, 5),
    sizes=SIZES,
    least=st.one_of(st.none(), st.integers(1, 12)),
    classes=st.one_of(st.none(), st.integers(1, 4)),
    alpha=st.floats(1e-320, 1e6),
    seed=st.integers(0, 2**63),
)
def test_what_is_dealt_is_what_was_asked(
    labels, clients, public, sizes, least, classes, alpha, seed
):
    if isinstance(sizes, np.ndarray):
        sizes = sizes[:clients] * 1.0
    asked = {"alpha": alpha, "sizes": sizes, "least": least, "classes": classes}

    def split_of(**changed):
        return sized(clients, labels, seed, public=public, **(asked | changed))

    try:
        split = split_of()
    except InputError as error:
        refused(error, split_of, least, classes)
        return
    owned = np.concatenate([split.public, *split.clients])
    assert max(Counter(owned.tolist()).values()) == 1
    got, private = sizes_of(split), len(labels) - public
    assert min(got) >= (least or 1)
    if classes is not None:
        assert labels_of(split, labels) == [classes] * clients
    elif sizes is None or isinstance(sizes, str):
        assert sum(got) == private
    if isinstance(sizes, str):
        assert max(got) - min(got) <= (0 if classes else 1)
    if isinstance(sizes, tuple):
        assert max(sizes[0], least or 1) <= min(got)
        assert max(got) <= sizes[1]
    if isinstance(sizes, np.ndarray):
        assert got == sizes.tolist()
    if classes and sizes is None:
        held = {label for part in split.clients for label in labels[part]}
        rest = np.setdiff1d(np.arange(len(labels)), owned)
        assert not held & set(labels[rest])
        assert clients * classes >= len(
            np.unique(np.delete(labels, split.public))
        ) or len(rest)
    again = split_of()
    assert all(map(np.array_equal, split.clients, again.clients))


def refused(error, split_of, least, classes):
    """Check that what a refusal offers can be had, and that no more can."""
    could = re.search(r"at most (?:the )?(\d+)", error.allowed)
    key = (error.where or "").removeprefix("dataset.partition.")
    if could and key in ("least", "classes"):
        most = int(could[1])
        assert find_refused_key(lambda: split_of(**{key: most})) != error.where
        with pytest.raises(InputError):
            split_of(**{key: most + 1})
    assert error.where.startswith("dataset.partition") or error.where == "clients"


def find_refused_key(split_of):
    """Return the key that is in the way, None where nothing is."""
    try:
        split_of()
    except InputError as error:
        return error.where


# --- in a scenario --------------------------------------------------------------------


def test_a_column_of_the_devices_says_who_owns_how_many(tmp_path):
    table = tmp_path / "phones.csv"
    table.write_text("n,speed\n30,1\n50,2\n20,3\n")
    plain = {
        "clients[0].count": 4,
        "clients[0].devices": {"table": str(table), "rows": "in-order"},
        "dataset.partition": {"sizes": {"column": "n"}, "least": 20},
    }
    scenario = worlds.world("tiny", plain)
    parts = Parts(scenario)
    assert [parts.samples_of(client) for client in range(4)] == [30, 50, 20, 30]
    run = worlds.play(scenario, tmp_path / "run")
    assert run.manifest["owned"]["unowned"] == 10_000 - 130
    table.write_text("n,speed\n30,1\n50,2\n21,3\n")
    kept = load_scenario(tmp_path / "run" / "scenario.yaml")
    assert learning_key(scenario) != learning_key(kept)
    assert Parts(kept).samples_of(2) == 20  # the run has a copy of its own
    assert worlds.play(kept).fingerprint == run.fingerprint
    sizes = {"sizes": {"table": str(table), "column": "n"}}
    changes = {"clients[0].devices": None, "dataset.partition": sizes}
    own = Parts(worlds.world("tiny", {**plain, **changes}))
    assert {own.samples_of(client) for client in range(4)} <= {30, 50, 21}


def test_what_is_nobodys_is_shown(tmp_path, capsys):
    changes = {"clients[0].count": 30, "dataset.partition": {"sizes": [100, 300]}}
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(worlds.change(worlds.TWO, changes)))
    assert main(["data", "show", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    owned = sum(Parts(load_scenario(path)).samples_of(client) for client in range(32))
    left = f"{10_000 - 32 - owned:,} training samples are nobody's"
    assert lines[3:5] == [
        left,
        "32 public samples at the server; shown are 20 clients, by size",
    ]
