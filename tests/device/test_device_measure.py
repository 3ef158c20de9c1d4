"""Measuring: the learning side's units are called, tables go on where they stopped."""

import csv
import platform

import pytest
import torch
import torch.nn.functional as F

from simfed import InputError, Interrupted
from simfed.calibrate import MeasurementPlan, fit_profile
from simfed.calibrate import measure as measuring
from simfed.calibrate.measure import MeasuredCase, measure
from simfed.cli import main
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


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def counted(path):
    """Measurements per case: calls that were long or not preempted, or three in a row
    that were.
    """
    done, tries = {}, {}
    for row in rows_of(path):
        key = (row["quantity"], row["strategy"], row["k"] or row["samples"])
        tries[key] = tries.get(key, 0) + 1
        if row["preempted"] == "0" or tries[key] == 3 or float(row["seconds"]) > 0.01:
            done[key], tries[key] = done.get(key, 0) + 1, 0
    return done


def test_every_case_is_measured_as_often_as_asked_and_can_be_fitted(tmp_path):
    out, told = tmp_path / "table.csv", []
    plan = MeasurementPlan(**SMALL, repeat=2)
    new = measure(
        plan, out, progress=lambda done, total, what: told.append((done, total))
    )
    assert new == 2 * CASES
    assert told == [(i + 1, 2 * CASES) for i in range(2 * CASES)]
    assert len(counted(out)) == CASES
    row = rows_of(out)[0]
    assert tuple(row) == measuring.COLUMNS
    assert (row["device"], row["threads"], row["clock"]) == ("cpu", "1", "cpu")
    assert all(float(row["seconds"]) > 0 for row in rows_of(out))
    assert platform.node() not in out.read_text()
    seen = [
        (r["quantity"], r["strategy"], r["k"] or r["samples"]) for r in rows_of(out)
    ]
    assert len(set(seen[:CASES])) > CASES // 3  # cases take turns
    curves = fit_profile(read_table([out]), name="x").document
    assert set(curves["compression"]["lenet5-half"]) == {"top-k", "periodic-k"}


def test_a_timed_step_leaves_the_residual_that_a_clients_round_leaves():
    plan = MeasurementPlan(**SMALL)
    bench = measuring.ModelBench(
        "lenet5-half", facts("lenet5-half", "mnist-mini"), plan
    )
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


@pytest.mark.parametrize(
    "case", MeasurementPlan(**SMALL).cases("lenet5-half", "mnist-mini"), ids=str
)
def test_what_is_timed_is_the_learning_sides_own(case, monkeypatch):
    called = []

    def spy(owner, name):
        original = getattr(owner, name)

        def call(*arguments, **options):
            called.append(name)
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    bench = measuring.ModelBench(
        "lenet5-half", facts("lenet5-half", "mnist-mini"), MeasurementPlan(**SMALL)
    )
    spy(LeNetPasses, "gradient")
    spy(LeNetPasses, "logits")
    spy(ErrorFeedback, "encode_in_place")
    call = bench.prepare(case)
    called.clear()
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
    measure(MeasurementPlan(**SMALL, repeat=1), out)
    first = out.read_text()
    assert measure(MeasurementPlan(**SMALL, repeat=1), out) == 0
    assert out.read_text() == first
    assert (
        measure(MeasurementPlan(**{**SMALL, "ks": (10, 100, 1000)}, repeat=2), out)
        == CASES + 2 * 4
    )
    assert out.read_text().startswith(first)
    assert set(counted(out).values()) == {2}


def test_ctrl_c_keeps_every_row_and_the_same_call_goes_on(tmp_path):
    out = tmp_path / "table.csv"

    def stop(done, total, what):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=f"5 of {CASES} measurements"):
        measure(MeasurementPlan(**SMALL, repeat=1), out, progress=stop)
    assert sum(counted(out).values()) == 5
    assert measure(MeasurementPlan(**SMALL, repeat=1), out) == CASES - 5


def test_the_threads_of_the_process_are_put_back(tmp_path):
    before = torch.get_num_threads()
    plan = MeasurementPlan(
        **{**SMALL, "quantities": ("inference",)}, repeat=1, threads=before + 1
    )
    measure(plan, tmp_path / "table.csv")
    assert torch.get_num_threads() == before
    assert {row["clock"] for row in rows_of(tmp_path / "table.csv")} == {"wall"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_cuda_device_is_measured_too(tmp_path):
    measure(MeasurementPlan(**SMALL, repeat=1, device="cuda"), tmp_path / "table.csv")
    assert {row["device"] for row in rows_of(tmp_path / "table.csv")} == {
        torch.cuda.get_device_name()
    }


def test_codecs_are_measured_by_label_and_fitted(tmp_path):
    out = tmp_path / "codecs.csv"
    codecs = ("qsgd", "top-k+qsgd(4,bucket=64)", "powersgd(1)", "ef21")
    sizes = {
        **SMALL,
        "quantities": ("compression", "decompression"),
        "strategies": codecs,
    }
    measure(MeasurementPlan(**sizes, repeat=1), out)
    d = facts("lenet5-half", "mnist-mini").parameters
    measured = {(row["strategy"], int(row["k"])) for row in rows_of(out)}
    assert measured == {("qsgd", d)} | {
        (name, k) for name in codecs[1:] for k in (10, 100)
    }
    assert measure(MeasurementPlan(**sizes, repeat=1), out) == 0
    strategies = {key[2] for key in read_table([out]).keys}
    assert strategies == set(codecs)


def test_labels_on_the_command_line_may_have_commas(tmp_path):
    out = tmp_path / "codecs.csv"
    words = "--models lenet5-half --k 10 --repeat 1 --only compression"
    codecs = f"{words} --strategies top-k,qsgd(4,bucket=64)"
    main(["calibrate", "measure", "--out", str(out), *codecs.split()])
    assert {row["strategy"] for row in rows_of(out)} == {"top-k", "qsgd(4,bucket=64)"}


FEW = {**SMALL, "quantities": ("training",), "batches": (2,), "repeat": 2}


def test_a_table_holds_measurements_of_one_manner(tmp_path):
    out = tmp_path / "table.csv"
    measure(MeasurementPlan(**FEW, pace_s=0.0), out)
    assert {row["manner"] for row in rows_of(out)} == {"in a loop"}
    with pytest.raises(InputError, match=r"manner rested 0\.001 s and cold"):
        measure(MeasurementPlan(**FEW, pace_s=0.001), out)
    plan = MeasurementPlan(**FEW, steps=5)
    assert plan.manner == "rested 0.02 s and cold, 5 steps in a row"


def test_a_call_comes_after_a_rest_in_which_caches_were_filled_with_other_things(
    monkeypatch,
):
    rests = []
    monkeypatch.setattr(measuring.time, "sleep", rests.append)
    model_facts = facts("lenet5-half", "mnist-mini")
    bench = measuring.ModelBench(
        "lenet5-half", model_facts, MeasurementPlan(**FEW, pace_s=0.5)
    )
    bench.time(MeasuredCase("training", "", 2))
    assert rests == [0.5]
    assert bench.other_things.max() == bench.other_things.min() == 1
    measuring.ModelBench(
        "lenet5-half", model_facts, MeasurementPlan(**FEW, pace_s=0.0)
    ).time(MeasuredCase("training", "", 2))
    assert rests == [0.5]


def test_training_is_the_mean_of_as_many_steps_as_are_asked_for(monkeypatch):
    clock = iter([0.0, 6.0])
    bench = measuring.ModelBench(
        "lenet5-half",
        facts("lenet5-half", "mnist-mini"),
        MeasurementPlan(**FEW, pace_s=0.0, steps=3),
    )
    steps = []
    monkeypatch.setattr(bench, "step", steps.append)
    bench.clock = lambda: next(clock)
    assert bench.time(MeasuredCase("training", "", 2))[0] == 2.0
    assert steps == [2, 2, 2]


def test_evaluation_goes_through_the_fewest_and_the_most_samples():
    plan = MeasurementPlan(**{**SMALL, "quantities": ("evaluation",)}, pace_s=0.0)
    cases = plan.cases("lenet5-half", "mnist-mini")
    assert [(case.quantity, case.size) for case in cases] == [
        ("evaluation", 8),
        ("evaluation", 16),
    ]
    bench = measuring.ModelBench(
        "lenet5-half", facts("lenet5-half", "mnist-mini"), plan
    )
    assert all(bench.time(case)[0] > 0 for case in cases)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pace_s": -1.0}, "seconds from 0 to 3600"),
        ({"steps": 0}, "of at least 1"),
        ({"threads": 1_000_000}, "--threads: got 1000000, expected at most"),
        ({"quantities": ("auxiliary",)}, "--only: got 'auxiliary', expected kinds of"),
        ({"strategies": ("qsgd(1)",)}, "--strategies: qsgd: levels: got 1, expected"),
    ],
)
def test_plans_that_cannot_be_are_refused(tmp_path, changes, said):
    with pytest.raises(InputError, match=said):
        measure(MeasurementPlan(**{**FEW, **changes}), tmp_path / "table.csv")
