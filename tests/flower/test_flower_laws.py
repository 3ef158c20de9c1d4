"""Laws of what messages take: fitted to made-up plays, written, read, charged.

Needs no Flower.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simfed import InputError, InputErrors
from simfed.flower import (
    COUNT,
    SIZE,
    Kernel,
    Visible,
    WorkFile,
    fit_kinds,
    load_work,
    write_work,
)
from simfed.flower.laws import MessageRow
from simfed.ground import read_arithmetic

CONFIG = {"local-epochs": 1, "batch-size": 32, "learning-rate": 0.1, "model": "small"}
PLAYS = [
    (4, {}),
    (4, {"local-epochs": 2}),
    (4, {"local-epochs": 4}),
    (4, {"batch-size": 64}),
    (4, {"batch-size": 8}),
    (8, {}),
    (16, {}),
    (8, {"local-epochs": 4, "batch-size": 8}),
    (8, {"local-epochs": 2, "batch-size": 64}),
]


def seconds(samples, epochs, batch):
    """What a message of a well-known app takes."""
    return 0.01 + epochs * (2e-4 * samples + 3e-3 * np.ceil(samples / batch))


def played(cost=seconds, *, kind="train", texts=(), scatter=0.03):
    """The messages of all plays, each of three on every node."""
    rng, rows = np.random.default_rng(1), []
    for number, (nodes, changes) in enumerate(PLAYS):
        config = {**CONFIG, **changes}
        for client in range(nodes):
            samples = 800 // nodes + 10 * client
            nominal_s = cost(samples, config["local-epochs"], config["batch-size"])
            for turn in range(3):
                reply = {"num-examples": samples, "train-loss": rng.random()}
                told = {**dict(texts), "server-round": turn}
                visible = Visible(kind, told, reply, 5e4, 5e4)
                work_s = nominal_s * np.exp(scatter * rng.standard_normal())
                work_s += 0.5 * (not turn)
                one = MessageRow(
                    number, visible, config, nodes, work_s, 0.0, not turn, turn
                )
                rows.append(one)
    return rows


def row(play, nodes, work_s, config=CONFIG, *, kind="train", node=None, **reply):
    """One message of a play, whose reply has these numbers."""
    numbers = {name.replace("_", "-"): value for name, value in reply.items()}
    visible = Visible(kind, reply=numbers, node_config=node or {})
    return MessageRow(play, visible, config, nodes, work_s)


def charge(law, **values):
    """The law's seconds at these values."""
    return read_arithmetic(law.seconds)(values)


def take_least(first, second):
    """Rows of plays that were made twice."""
    return [
        replace(
            min(pair, key=lambda row: row.work_s),
            repeats=tuple(row.work_s for row in pair),
        )
        for pair in zip(first, second, strict=True)
    ]


def more_batches(samples, epochs, batch):
    """Step by step from a constant finds none of three terms: the way down does."""
    return 0.05 + epochs * (1e-4 * samples + 1e-3 * np.ceil(samples / batch))


@pytest.mark.parametrize(("cost", "off"), [(seconds, 0.03), (more_batches, 0.01)])
def test_a_law_holds_beyond_the_plays_that_it_was_fitted_to(cost, off):
    """One play says what a message takes, the others how that grows with each size."""
    (law,) = fit_kinds(played(cost, scatter=off))
    assert law.error.median < 0.04
    assert law.error.held_out < 0.05
    names = "num_examples", "local_epochs", "batch_size"
    for sizes in ((100, 1, 32), (400, 2, 16), (150, 4, 8)):
        values = dict(zip(names, sizes, strict=True))
        charged_s = charge(law, nodes=6, **values)
        assert charged_s == pytest.approx(cost(*sizes), rel=5 * off)
    assert law.first == pytest.approx(0.5, rel=0.05)
    assert law.share == 1.0
    assert np.log(law.noise.quantiles).std() == pytest.approx(off, rel=0.3)
    assert law.ranges["num_examples"] == (50.0, 230.0)
    assert "train_loss" not in law.ranges


def test_a_laws_card_has_each_play_measured_fitted_and_unseen():
    names = [f"play {number}" for number in range(len(PLAYS))]
    (law,) = fit_kinds(played(scatter=0.0), names)
    assert [line.play for line in law.plays] == names
    first = law.plays[0]
    of_first_s = [seconds(200 + 10 * node, 1, 32) for node in range(4)]
    assert first.messages == 8  # two of each node, the first one not among them
    assert first.measured == pytest.approx(np.mean(of_first_s), rel=1e-3)
    for line in law.plays:
        assert line.fitted == pytest.approx(line.measured, rel=0.02)
        assert line.unseen == pytest.approx(line.measured, rel=0.02)


@pytest.mark.parametrize("seed", range(4))
def test_a_play_that_chance_made_slow_is_no_law(seed):
    """What two plays of the same differ by is not explained by the settings of one of
    them.
    """
    rng = np.random.default_rng(seed)
    # of whole processes
    factors = np.exp(0.15 * np.abs(rng.standard_normal((len(PLAYS), 2))))
    first, second = (
        [
            replace(row, work_s=row.work_s * factors[row.play, number])
            for row in played(lambda *_: 0.2, scatter=0.02)
        ]
        for number in (0, 1)
    )
    (law,) = fit_kinds(take_least(first, second))
    assert law.names == frozenset()
    assert charge(law) == pytest.approx(0.2, rel=0.15)


@pytest.mark.parametrize("slower", [1.0, 1.3, 1.7])
def test_repeats_that_differ_do_not_hide_a_law(slower):
    """Another process made the repeat of each play slower: the lesser time is the
    work's.
    """
    rng = np.random.default_rng(0)
    rows = []
    for play, nodes in enumerate((4, 8)):
        for number in range(2 * nodes):
            samples = 3200 // nodes
            work_s = 1e-3 * samples * (1 + 0.03 * rng.standard_normal())
            plain = row(play, nodes, work_s, num_examples=samples)
            repeats = work_s, work_s * slower
            turn = number // nodes
            rows.append(replace(plain, first=not number, round=turn, repeats=repeats))
    (law,) = fit_kinds(rows)
    assert law.names == {"num_examples"}
    assert charge(law, num_examples=600) == pytest.approx(0.6, rel=0.02)


def test_how_far_a_law_is_off_is_not_drawn_as_chance():
    """Scatter is that of alike messages of a play, however the law fits other plays."""
    rows = [
        row(play, nodes, work_s * np.exp(0.02 * n), {**CONFIG, **changes})
        for play, (nodes, changes) in enumerate(PLAYS)
        for work_s in [0.1 if play % 2 else 0.2]  # which nothing that one sees explains
        for n in np.random.default_rng(play).standard_normal(12)
    ]
    (law,) = fit_kinds(rows)
    assert law.error.worst > 0.2
    assert np.log(law.noise.quantiles).std() == pytest.approx(0.02, rel=0.3)


def test_unlike_nodes_hide_no_term_and_scatter_in_two_heaps():
    """Every second node trains for twice the epochs, which no message says."""
    rows = [
        row(play, nodes, (1 + node % 2) * once_s, own, num_examples=samples)
        for play, (nodes, changes) in enumerate(PLAYS)
        for own, samples in [({**CONFIG, **changes}, 800 // nodes)]
        for once_s in [seconds(samples, own["local-epochs"], own["batch-size"])]
        for node in [*range(nodes)] * 3
    ]
    (law,) = fit_kinds(rows[1:])
    charged_s = charge(law, num_examples=100, local_epochs=3, batch_size=16, nodes=8)
    assert charged_s == pytest.approx(1.5 * seconds(100, 3, 16), rel=0.05)
    assert law.noise.quantiles[-1] / law.noise.quantiles[0] == pytest.approx(2, rel=0.1)


def test_a_size_may_come_in_twice():
    """Trees cost the more the deeper they are, rows that leave a cache as well."""
    (law,) = fit_kinds(played(lambda n, epochs, _: 1e-3 * n * epochs**2, scatter=0.01))
    charged_s = charge(law, num_examples=100, local_epochs=3, batch_size=32, nodes=6)
    assert charged_s == pytest.approx(0.9, rel=0.05)


@pytest.mark.parametrize(("waited_s", "waits"), [(0.3, 0.3), (0.009, 0.0)])
def test_waiting_is_a_law_s_where_it_is_more_than_a_twentieth_of_the_work(
    waited_s, waits
):
    one = replace(row(0, 4, 0.2, num_examples=500), waited_s=waited_s)
    (law,) = fit_kinds([one] * 8)
    assert law.waits == waits
    # so that a run over ten times as many says that it is outside of it
    assert law.ranges["num_examples"] == (500.0, 500.0)


@pytest.mark.parametrize(
    ("cost", "names"),
    [
        # masks of secure aggregation: one per other node, as often as a setting says
        (lambda nodes, epochs: 0.03 * nodes * epochs, {"nodes", "local_epochs"}),
        # its shares: one per other node, of a polynomial as long as there are nodes
        (lambda nodes, epochs: 0.002 * nodes + 0.0008 * nodes**2, {"nodes"}),
        (lambda nodes, epochs: 0.01 + 0.004 * nodes, {"nodes"}),
    ],
)
def test_work_for_nodes_grows_with_them_or_with_their_square(cost, names):
    rng = np.random.default_rng(2)
    rows = [
        row(play, nodes, work_s, config, kind="query")
        for play, (nodes, changes) in enumerate([*PLAYS, (4, {}), (4, {})])
        for config in [{**CONFIG, **changes}]
        for work_s in cost(nodes, config["local-epochs"])
        * np.exp(0.02 * rng.standard_normal(6 * nodes))
    ]
    (law,) = fit_kinds(rows)
    assert law.names == names
    for nodes in (6, 12, 40):
        charged_s = charge(law, nodes=nodes, local_epochs=3)
        assert charged_s == pytest.approx(cost(nodes, 3), rel=0.06)


def test_kinds_are_told_by_action_and_by_texts_that_recur_but_not_by_names():
    """A stage of secure aggregation tells a kind.

    A date, which is new every time, does not.
    """
    rows = [
        *played(lambda *_: 0.001, kind="query", texts=[("stage", "setup")]),
        *played(lambda *_: 0.1, kind="query", texts=[("stage", "unmask")]),
        *played(lambda *_: 0.3, kind="train.sum"),
    ]
    dated = [
        replace(r, visible=Visible("evaluate", {"at": str(n)}, r.visible.reply))
        for n, r in enumerate(rows[:40])
    ]
    laws = {law.title: law for law in fit_kinds([*rows, *dated])}
    stages = {"query with stage 'setup'": 0.001, "query with stage 'unmask'": 0.1}
    assert set(laws) == {*stages, "train.sum", "evaluate"}
    for title, expected in stages.items():
        assert charge(laws[title]) == pytest.approx(expected, rel=0.1)


def test_a_number_of_unlike_nodes_sizes_their_messages():
    """Each node's own `rows` is a value of its messages.

    Its play has no one value of it.
    """
    rows = [
        row(play, nodes, 2e-4 * own, node={"rows": own})
        for play, (nodes, factor) in enumerate([(4, 1), (4, 2), (8, 1), (16, 1)])
        for node in range(nodes)
        for own in [factor * (100 + 50 * (node % 3))]
        for _ in range(3)
    ]
    (law,) = fit_kinds(rows)
    assert law.names == {"rows"}
    assert charge(law, rows=1000) == pytest.approx(0.2)


# ---- files and charges ---------------------------------------------------------------


@pytest.fixture
def work():
    return WorkFile(
        app="tiny",
        digest="0",
        kernel=Kernel(parameters=61706, flops=2263920.0, seconds=0.002),
        imports=1.5,
        run_config={
            "local-epochs": [1, 2],
            "model": ["small"],
            "num-server-rounds": [3],
            "depth": [2, 4],
        },
        settings={"local-epochs": SIZE, "num-server-rounds": COUNT, "depth": SIZE},
        nodes=[4, 8],
        kinds=fit_kinds(played()),
    )


def test_a_work_file_is_read_as_it_was_written(work, tmp_path):
    write_work(work, tmp_path / "app.work.yaml")
    assert load_work(tmp_path / "app.work.yaml") == work


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (("seconds: ", "seconds: open('x') + "), "kinds[0].seconds"),
        (("quantiles", "quantile"), "kinds[0].scatter"),
        (("\nkinds:", "\nknids:"), "kinds"),
    ],
)
def test_a_work_file_that_is_wrong_is_said_with_its_place(
    work, tmp_path, change, where
):
    path = tmp_path / "app.work.yaml"
    write_work(work, path)
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(InputErrors) as wrong:
        load_work(path)
    assert any(
        str(error.where).startswith(f"{path}: {where}") for error in wrong.value.errors
    )
    path.write_text("kind: table\n")
    with pytest.raises(InputError, match=r"simfed flower measure"):
        load_work(path)


def test_what_was_not_measured_is_said_and_not_guessed(work):
    settings = {
        "model": "large",
        "local-epochs": 3,
        "num-server-rounds": 50,
        "depth": 9,
    }
    assert work.list_doubts(settings, "once") == [
        "what these settings change is not in the charges: model is 'large' here and "
        "was 'small' in all plays; depth is 9 here and was 2 or 4 in all plays (a size "
        "that is in no law)"
    ]
    (law,) = work.kinds
    assert law.list_doubts({"num_examples": 150.0}) == []
    (doubt,) = law.list_doubts({"num_examples": 1000.0})
    assert "num_examples of train is outside of twice what was measured" in doubt
