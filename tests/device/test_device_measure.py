"""Measuring: the learning side's units are called, tables go on where they stopped."""

import csv
import itertools
import platform

import pytest
import torch
import torch.nn.functional as F

from simfed import InputError, Interrupted
from simfed.calibrate import MeasurementPlan, fit_profile
from simfed.calibrate import measure as measuring
from simfed.calibrate.measure import MeasuredCase, measure
from simfed.compress import ErrorFeedback
from simfed.device import read_table
from simfed.learn import LeNetPasses, build_model
from simfed.learn.catalogue import facts
from simfed.learn.models import plain

SMALL = {
    "models": (("lenet5-half", "mnist-mini"),),
    "ks": (10, 100, 10**9),
    "batches": (2, 4),
    "samples": (8, 16),
    "strategies": ("top-k", "periodic-k"),
    "quantities": (
        "training",
        "compression",
        "decompression",
        "inference",
        "distillation",
    ),
}
CASES = 2 + 4 + 4 + 2 + 2  # K above d is left out
FACTS = facts("lenet5-half", "mnist-mini")


def plan_of(**changes):
    return MeasurementPlan(**{**SMALL, **changes})


def bench_of(**plan):
    return measuring.ModelBench("lenet5-half", FACTS, plan_of(**plan))


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def case_of(row):
    return row["quantity"], row["strategy"], row["k"] or row["samples"]


def counted(path):
    """Measurements per case: calls that were long or not preempted, or three in a row
    that were.
    """
    done, tries = {}, {}
    for row in rows_of(path):
        key = case_of(row)
        tries[key] = tries.get(key, 0) + 1
        if row["preempted"] == "0" or tries[key] == 3 or float(row["seconds"]) > 0.01:
            done[key], tries[key] = done.get(key, 0) + 1, 0
    return done


def test_every_case_is_measured_as_often_as_asked_and_can_be_fitted(tmp_path):
    out, told = tmp_path / "table.csv", []
    new = measure(plan_of(repeat=2), out, progress=lambda *done: told.append(done[:2]))
    assert new == 2 * CASES
    assert told == [(i + 1, new) for i in range(new)]
    assert len(counted(out)) == CASES
    rows = rows_of(out)
    assert tuple(rows[0]) == measuring.COLUMNS
    manner = {(row["device"], row["threads"], row["clock"]) for row in rows}
    assert manner == {("cpu", "1", "cpu")}
    assert all(float(row["seconds"]) > 0 for row in rows)
    assert platform.node() not in out.read_text()
    first = [case_of(row) for row in rows[:CASES]]
    assert len(set(first)) > CASES // 3  # cases take turns
    curves = fit_profile(read_table([out]), name="x").document
    assert set(curves["compression"]["lenet5-half"]) == {"top-k", "periodic-k"}


def test_a_timed_step_leaves_the_residual_that_a_clients_round_leaves():
    bench = bench_of()
    bench.time(MeasuredCase("training", "", 4))
    # four of four samples, in another order
    images, labels = bench.samples, bench.labels
    twin = plain(build_model("lenet5-half", (1, 28, 28), 10, seed=0))
    F.cross_entropy(twin(images), labels).backward()
    gradient = torch.cat([p.grad.flatten() for p in twin.parameters()])
    torch.testing.assert_close(bench.residual, gradient, rtol=1e-4, atol=1e-6)
    before = bench.residual.clone()
    payload = bench.encode(MeasuredCase("compression", "top-k", 10))
    assert sorted(before.abs().topk(10).indices.tolist()) == payload.indices.tolist()
    assert torch.equal(bench.residual[payload.indices], torch.zeros(10))


@pytest.mark.parametrize("case", plan_of().cases("lenet5-half", "mnist-mini"), ids=str)
def test_what_is_timed_is_the_learning_sides_own(case, monkeypatch):
    bench = bench_of()
    call, called = bench.prepare(case), []
    for owner, name in (
        (LeNetPasses, "gradient"),
        (LeNetPasses, "logits"),
        (ErrorFeedback, "encode_in_place"),
    ):
        original = getattr(owner, name)

        def spy(*arguments, name=name, original=original, **options):
            called.append(name)
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, spy)
    call()
    assert (
        set(called)
        == {
            "training": {"gradient"},
            "compression": {"encode_in_place"},
            "decompression": set(),
            "inference": {"logits"},
            "distillation": {"gradient"},
        }[case.quantity]
    )


def test_a_second_call_goes_on_and_a_complete_table_stays_as_it_is(tmp_path):
    out = tmp_path / "table.csv"
    measure(plan_of(repeat=1), out)
    first = out.read_text()
    assert measure(plan_of(repeat=1), out) == 0
    assert out.read_text() == first
    assert measure(plan_of(ks=(10, 100, 1000), repeat=2), out) == CASES + 2 * 4
    assert out.read_text().startswith(first)
    assert set(counted(out).values()) == {2}


def test_ctrl_c_keeps_every_row_and_the_same_call_goes_on(tmp_path):
    out = tmp_path / "table.csv"

    def stop(done, total, what):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=f"5 of {CASES} measurements"):
        measure(plan_of(repeat=1), out, progress=stop)
    assert sum(counted(out).values()) == 5
    assert measure(plan_of(repeat=1), out) == CASES - 5


def test_the_threads_of_the_process_are_put_back(tmp_path):
    before, out = torch.get_num_threads(), tmp_path / "table.csv"
    measure(plan_of(**FEW, threads=before + 1), out)
    assert torch.get_num_threads() == before
    assert {row["clock"] for row in rows_of(out)} == {"wall"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_cuda_device_is_measured_too(tmp_path):
    out = tmp_path / "table.csv"
    measure(plan_of(repeat=1, device="cuda"), out)
    assert {row["device"] for row in rows_of(out)} == {torch.cuda.get_device_name()}


def test_codecs_are_measured_by_label_and_fitted(tmp_path):
    out = tmp_path / "codecs.csv"
    codecs = ("qsgd", "top-k+qsgd(4,bucket=64)", "powersgd(1)", "ef21")
    kinds = ("compression", "decompression")
    plan = plan_of(quantities=kinds, strategies=codecs, repeat=1)
    measure(plan, out)
    measured = {(row["strategy"], int(row["k"])) for row in rows_of(out)}
    of_k = {*itertools.product(codecs[1:], (10, 100))}
    assert measured == {("qsgd", FACTS.parameters)} | of_k
    assert measure(plan, out) == 0
    assert {key[2] for key in read_table([out]).keys} == set(codecs)


FEW = {"quantities": ("training",), "batches": (2,), "repeat": 2}


def test_a_table_holds_measurements_of_one_manner(tmp_path):
    out = tmp_path / "table.csv"
    measure(plan_of(**FEW, pace_s=0.0), out)
    assert {row["manner"] for row in rows_of(out)} == {"in a loop"}
    with pytest.raises(InputError, match=r"manner rested 0\.001 s and cold"):
        measure(plan_of(**FEW, pace_s=0.001), out)
    assert plan_of(**FEW, steps=5).manner == "rested 0.02 s and cold, 5 steps in a row"


def test_a_call_comes_after_a_rest_in_which_caches_were_filled_with_other_things(
    monkeypatch,
):
    rests = []
    monkeypatch.setattr(measuring.time, "sleep", rests.append)
    bench = bench_of(pace_s=0.5)
    bench.time(MeasuredCase("training", "", 2))
    assert rests == [0.5]
    assert bench.other_things.max() == bench.other_things.min() == 1
    bench_of(pace_s=0.0).time(MeasuredCase("training", "", 2))
    assert rests == [0.5]


def test_training_is_the_mean_of_as_many_steps_as_are_asked_for(monkeypatch):
    bench, steps = bench_of(pace_s=0.0, steps=3), []
    monkeypatch.setattr(bench, "step", steps.append)
    bench.clock = iter([0.0, 6.0]).__next__
    assert bench.time(MeasuredCase("training", "", 2))[0] == 2.0
    assert steps == [2, 2, 2]


def test_evaluation_goes_through_the_fewest_and_the_most_samples():
    plan = plan_of(quantities=("evaluation",))
    fewest, most = plan.cases("lenet5-half", "mnist-mini")
    assert (fewest.quantity, fewest.size, most.size) == ("evaluation", 8, 16)
    assert bench_of(pace_s=0.0).time(most)[0] > 0


def test_more_threads_than_the_cores_can_use_are_refused(tmp_path):
    plan = plan_of(**FEW, threads=1_000_000)
    with pytest.raises(InputError, match="--threads: got 1000000, expected at most"):
        measure(plan, tmp_path / "table.csv")
