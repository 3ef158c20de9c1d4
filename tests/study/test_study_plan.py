"""Study files: how they expand, and every way in which they can be wrong."""

import itertools

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from simfed import InputError, InputErrors
from simfed.study import plan_study
from simfed.study.plan import label_of, parse_place

UP = "clients[*].link.up"


def complaints(path):
    with pytest.raises((InputError, InputErrors)) as caught:
        plan_study(path)
    prefix = f"{path}: "
    return [text.removeprefix(prefix) for text in str(caught.value).split("\n")]


def test_a_grid_is_every_combination_under_every_seed(write_study):
    plan = plan_study(
        write_study(
            "{grid: {UP: [5 Mbps, 50 Mbps], policy.strategy: [top-k, random-k]},"
            " seeds: [3, 4]}"
        )
    )
    axes = (3, 4), ("5 Mbps", "50 Mbps"), ("top-k", "random-k")
    points = [(run.seed, *run.point.values()) for run in plan.runs]
    assert points == [*itertools.product(*axes)]
    last = plan.runs[-1].scenario
    assert (last.seed, last.policy.strategy, last.clients[0].link.up) == (
        4,
        "random-k",
        6.25e6,
    )


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
    path = write_study("zip: {UP: [5 Mbps], 'clients[0].link.up': [6 Mbps]}")
    assert complaints(path) == [
        "zip.clients[0].link.up: got 'clients[0].link.up', expected one axis for each "
        "key (this one stands in zip.clients[*].link.up too)"
    ]


def test_a_wrong_value_names_the_point_and_one_that_is_everywhere_does_not(
    write_study, tmp_path
):
    base = tmp_path / "base.yaml"
    path = write_study("grid: {UP: [5 Mb, 5 Mbps], rounds: [3, 4]}")
    assert complaints(path) == [
        (
            f"with up 5 Mb, rounds 3: {base}: clients[0].link.up: got '5 Mb', expected "
            "a rate with its unit such as 20 Mbps"
        )
    ]
    path = write_study("grid: {UP: [5 Mbps, 6 Mbps]}", base={"rounds": -1})
    with pytest.raises(InputErrors) as caught:
        plan_study(path)
    assert str(caught.value) == (
        f"{base}: rounds: got -1, expected a whole number of at least 1"
    )


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
    from simfed.study.plan import make_distinct

    labels = make_distinct([label_of(value) for value in axis])
    assert len(set(labels)) == len(labels) == len(axis)
    assert all(len(label) <= 66 for label in labels)


def test_more_runs_than_can_be_handled_are_counted_before_they_are_made(write_study):
    values = list(range(1, 1001))
    grid = {"compression.k": values, "training.batch_size": values}
    assert complaints(write_study(grid=grid, seeds=[0, 1, 2])) == [
        "got '3,000,000: 1,000 of compression.k × 1,000 of training.batch_size × 3 "
        "seeds', "
        "expected at most 100,000 runs, every combination under every seed counted"
    ]


def test_a_run_has_the_same_address_alone_and_among_many(write_study):
    from study_fakes import address

    from simfed.study import check_plan

    path = write_study("{grid: {UP: [5 Mbps, 50 Mbps]}, seeds: [3, 4, 5]}")
    plan = plan_study(path)
    addresses = check_plan(plan, str(path), device="cpu", time_only=False)
    options = {"source": plan.study.base, "device": "cpu", "time_only": False}
    assert addresses == [address(run.scenario, **options) for run in plan.runs]
    assert len(set(addresses)) == 6


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


@pytest.mark.parametrize(
    ("only", "said"),
    [
        ("5 Mbps", f"got '5 Mbps', expected AXIS=VALUE,… of the axes up, seed or {UP}"),
        ("k=3", f"got 'k=3', expected AXIS=VALUE,… of the axes up, seed or {UP}"),
        (
            "up=5Mbps",
            f"got '5Mbps', expected a value of {UP}: 5 Mbps or 6 Mbps (did you mean '5 "
            f"Mbps'?)",
        ),
        ("seed=1", "got '1', expected a value of seed: 0"),
    ],
)
def test_a_part_that_is_none_is_one_sentence(write_study, only, said):
    plan = plan_study(write_study("grid: {UP: [5 Mbps, 6 Mbps]}"))
    with pytest.raises(InputError) as caught:
        parse_place(plan, only)
    assert str(caught.value) == f"--only: {said}"
