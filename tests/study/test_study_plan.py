"""Study files: how they expand, and every way in which they can be wrong."""

import itertools

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from simfed import InputErrors
from simfed.study import plan_study
from simfed.study.plan import label_of, make_distinct, parse_place

UP = "clients[*].link.up"


def test_a_grid_is_every_combination_under_every_seed(write_study):
    text = """
    grid: {UP: [5 Mbps, 50 Mbps], policy.strategy: [top-k, random-k]}
    seeds: [3, 4]
    """
    runs = plan_study(write_study(text)).runs
    axes = (3, 4), ("5 Mbps", "50 Mbps"), ("top-k", "random-k")
    points = [(run.seed, *run.point.values()) for run in runs]
    assert points == [*itertools.product(*axes)]
    last = runs[-1].scenario
    assert (last.seed, last.policy.strategy) == (4, "random-k")
    assert last.clients[0].link.up == 6.25e6


def test_zip_steps_its_keys_together_and_list_writes_points_out(write_study):
    plan = plan_study(
        write_study(
            """
            zip: {UP: [5 Mbps, 50 Mbps], compression.k: [500, 1000]}
            list:
              small: {rounds: 5}
              long and skewed: {rounds: 9, dataset.partition.alpha: 0.1}
            """
        )
    )
    points = [
        (
            r.scenario.compression.k,
            r.scenario.rounds,
            r.scenario.dataset.partition.alpha,
        )
        for r in plan.runs
    ]
    assert points == [(500, 5, 0.5), (500, 9, 0.1), (1000, 5, 0.5), (1000, 9, 0.1)]
    assert plan.runs[1].point == {"zip": "5 Mbps, 500", "list": "long and skewed"}


def test_in_a_point_written_out_the_later_key_counts(write_study):
    plan = plan_study(
        write_study("list: [{UP: 5 Mbps}, {UP: 5 Mbps, 'clients[0].link.up': 6 Mbps}]")
    )
    assert [run.scenario.clients[0].link.up * 8 for run in plan.runs] == [5e6, 6e6]


def test_a_value_that_is_wrong_everywhere_names_no_point(write_study, tmp_path):
    path = write_study("grid: {UP: [5 Mbps, 6 Mbps]}", base={"rounds": -1})
    said = "rounds: got -1, expected a whole number of at least 1"
    with pytest.raises(InputErrors, match=f"^{tmp_path}/base.yaml: {said}$"):
        plan_study(path)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(0, 9)
    | st.floats(0, 1)
    | st.text("ab", max_size=70),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(deadline=None)
@given(st.lists(values, min_size=1, max_size=6, unique_by=lambda v: yaml.safe_dump(v)))
def test_labels_are_distinct_whatever_the_values(axis):
    labels = make_distinct([label_of(value) for value in axis])
    assert len(set(labels)) == len(labels) == len(axis)
    assert all(len(label) <= 66 for label in labels)


@pytest.mark.parametrize(
    ("only", "count"),
    [
        ("up=5 Mbps", 8),
        (f"{UP}=50 Mbps,seed=4", 4),
        ("list=a, b=c , seed = 3", 4),
        ("up=5 Mbps,policy=ascend c=5,list=a, b=c,seed=3", 1),
    ],
)
def test_a_part_of_a_study_goes_by_its_labels(write_study, only, count):
    plan = plan_study(
        write_study(
            """
            grid: {UP: [5 Mbps, 50 Mbps], policy: [TOP, {kind: ascend, c: 5}]}
            list: {"a, b=c": {rounds: 3}, other: {rounds: 4}}
            seeds: [3, 4]
            """.replace("TOP", "{kind: uniform, strategy: top-k}")
        )
    )
    place = parse_place(plan, only)
    assert sum(run.is_at(place) for run in plan.runs) == count
