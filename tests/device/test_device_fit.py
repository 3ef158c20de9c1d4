"""Fitting: known laws are recovered, outliers tolerated, intervals calibrated, noise
told apart.
"""

import math

import numpy as np
import pytest
from device_made_up import WORK, measured_table

from simfed.calibrate import compare, fit_profile, format_profile
from simfed.calibrate.fit import FitSample, choose_law, fit_law
from simfed.calibrate.spread import (
    QUANTILE,
    estimate_coverage,
    estimate_spread,
    estimate_typical_variance,
)
from simfed.calibrate.starts import add_starts
from simfed.device import (
    DeviceSpec,
    MeasuredRows,
    ModelWork,
    Row,
    build_processor,
    load_profile,
    read_table,
)
from simfed.device.laws import ACROSS_MODELS, LAWS, PER_MODEL
from simfed.device.noise import Measured, fit_noise
from simfed.ground import Work

K = np.array([100.0, 300, 1000, 3000, 10_000, 30_000])
SIZES = {
    "k": np.tile(K, 4),
    "d": np.repeat([2e4, 1e5, 6e5, 4e6], len(K)),
    "samples": np.tile([1.0, 4, 16, 32, 64, 128], 4),
    "flops": np.tile([1.0, 4, 16, 32, 64, 128], 4)
    * np.repeat([1e6, 8e6, 1e8, 1e9], len(K)),
    "bytes": np.repeat([1e5, 4e6, 2e6, 5e7], len(K)),
}
TRUTH = {
    "affine-k": {"a": 2e-5, "b": 3e-9},
    "k-log-d": {"a": 1e-5, "b": 2e-10},
    "d-log-k": {"a": 1e-5, "b": 3e-11},
    "affine-d-k": {"a": 1e-5, "b": 3e-9, "c": 4e-10},
    "affine-samples": {"a": 8e-4, "b": 2e-4},
    "affine-flops": {"a": 5e-4, "b": 2e-11},
    "roofline": {"overhead": 3e-4, "per_flop": 2e-11, "per_byte": 2e-10},
}


def sample(law, noise_sd=0.0, rng=None, repeats=1, one_model=False):
    points = len(K) if one_model else 4 * len(K)
    size = {name: np.tile(x[:points], repeats) for name, x in SIZES.items()}
    seconds = LAWS[law].seconds(TRUTH[law], size) * np.ones(points * repeats)
    if noise_sd:
        seconds = seconds * np.exp(noise_sd * rng.standard_normal(len(seconds)))
    session, group = np.divmod(np.arange(len(seconds)), points)
    return FitSample(size, seconds, group, session)


@pytest.mark.parametrize("law", LAWS)
def test_times_stay_within_5_percent_with_3_percent_noise_and_a_tenth_wild(law):
    rng = np.random.default_rng(7)
    data = sample(law, 0.03, rng, repeats=2)
    wild = rng.choice(len(data), len(data) // 10, replace=False)
    data.seconds[wild] *= 5.0
    parameters = fit_law(LAWS[law], data)
    truth = sample(law)
    fitted = LAWS[law].seconds(parameters, truth.size)
    assert np.max(np.abs(fitted / truth.seconds - 1)) < 0.05


@pytest.mark.parametrize(
    ("names", "law"),
    [
        *((PER_MODEL["k"], law) for law in ("affine-k", "d-log-k")),
        *((ACROSS_MODELS["k"], law) for law in ("affine-d-k", "k-log-d", "d-log-k")),
        *((ACROSS_MODELS["samples"], law) for law in ("affine-flops", "roofline")),
    ],
)
def test_leaving_sizes_out_finds_the_true_law(names, law):
    one = names is PER_MODEL["k"]
    data = sample(law, 0.01, np.random.default_rng(3), repeats=3, one_model=one)
    kept = data if one else data.where(data.group % 2 == 0)
    assert choose_law(names, kept).law.name == law


def test_terms_are_never_negative():
    at, once = np.arange(4), np.zeros(4, int)
    data = FitSample({"k": K[:4]}, np.array([1e-6, 4e-6, 2e-5, 1e-4]), at, once)
    assert min(fit_law(LAWS["affine-k"], data).values()) >= 0.0


def test_intervals_hold_new_medians_as_often_as_they_say():
    law, rng = LAWS["affine-k"], np.random.default_rng(11)
    sizes = {"k": np.array([200.0, 2000.0, 20_000.0])}
    truth = law.seconds(TRUTH["affine-k"], sizes)
    inside, shares = [], []
    for _ in range(80):
        # of three sessions, and of a process of its own
        moved = 0.06 * rng.standard_normal(4)
        curves = []
        for _ in range(3):
            data = sample("affine-k", 0.04, rng, repeats=3, one_model=True)
            data.seconds[:] *= np.exp(moved[data.session])
            curves.append((choose_law(["affine-k"], data), data))
        typical = estimate_typical_variance(curves)
        first, data = curves[0]
        new = truth * np.exp(0.04 * rng.standard_normal(3) + moved[-1])
        off = np.abs(np.log(new / law.seconds(first.parameters, sizes)))
        inside += list(off <= QUANTILE * estimate_spread(first, data, typical))
        shares.append(estimate_coverage(first, data, typical))
    # 240 medians in threes that share a fit and a session: two to four times the
    # binomial variance
    assert np.mean(inside) == pytest.approx(0.9, abs=0.07)
    assert np.mean(shares) > 0.8


def test_a_curve_of_two_sizes_has_the_spread_of_its_kin():
    """Nothing can be left out of its fit; alone its spread is not known."""
    data = sample("affine-k", 0.04, np.random.default_rng(3), repeats=6, one_model=True)
    kin = choose_law(["affine-k"], data), data
    two = data.where(data.group < 2)
    fitted = choose_law(["affine-k"], two)
    assert estimate_spread(fitted, two, None) is None
    assert estimate_coverage(fitted, two, None) is None
    typical = estimate_typical_variance([kin, (fitted, two)])
    assert estimate_spread(fitted, two, typical) == pytest.approx(
        estimate_spread(*kin, None)
    )


def test_lognormal_noise_is_recovered_and_no_straggler_invented():
    factors = np.exp(0.08 * np.random.default_rng(1).standard_normal(800))
    law = fit_noise(factors)
    assert law.log_sd == pytest.approx(0.08, rel=0.1)
    assert law.probability == 0.0


@pytest.mark.parametrize(
    "truth", [Measured(0.05, 0.04, 1.5), Measured(0.1, 0.3, 0.3)], ids=["few", "many"]
)
def test_stragglers_are_recovered(truth):
    rng = np.random.default_rng(2)
    law = fit_noise(np.array([truth.factor(rng) for _ in range(3000)]))
    assert law.log_sd == pytest.approx(truth.log_sd, rel=0.1)
    assert law.probability == pytest.approx(truth.probability, rel=0.3)
    assert law.excess == pytest.approx(truth.excess, rel=0.3)


def stretches(
    rng, steps, *, starting_s=2e-3, step_s=1e-3, shared=0.03, own=0.15, rows=200
):
    """Seconds a step in rows of so many, with scatter they share and of each."""
    drawn = rng.standard_normal((rows, steps + 1))
    each = step_s * np.exp(own * drawn[:, :-1])
    return (starting_s + each.sum(axis=1)) * np.exp(shared * drawn[:, -1]) / steps


def read_stretches(tmp_path, seconds_by_steps):
    path = tmp_path / "stretches.csv"
    lines = ["quantity,model,batch_size,steps,seconds"]
    for steps, seconds in seconds_by_steps.items():
        lines += [f"training,lenet5,32,{steps},{each!r}" for each in seconds.tolist()]
    path.write_text("\n".join(lines) + "\n")
    return read_table([path])


def test_stretches_tell_steps_from_their_beginning_and_whose_scatter_it_is(tmp_path):
    """Two lengths are fitted; the time and the scatter of a third are told."""
    rng = np.random.default_rng(5)
    table = read_stretches(tmp_path, {n: stretches(rng, n) for n in (3, 20)})
    document = fit_profile(table, kind="table", name="stretches").document
    path = tmp_path / "stretches.yaml"
    path.write_text(format_profile(document))
    profile = load_profile(path)
    starting_s = profile.seconds("starting", model="lenet5", samples=1)
    assert starting_s == pytest.approx(2e-3, rel=0.1)
    step_s = profile.seconds("training", model="lenet5", batch=32)
    assert step_s == pytest.approx(1e-3, rel=0.03)
    noise = profile.noise["training"]
    # each step's own is diluted by the beginning, which has none, most where steps are
    # few
    assert noise.log_sd == pytest.approx(0.03, abs=0.015)
    assert 0.06 < noise.per_step < 0.15
    third = 10 * stretches(rng, 10)
    device = DeviceSpec.model_validate({"profile": "p", "noise": {"kind": "measured"}})
    processor = build_processor(device, profile)
    whole_s = processor.stretch_s(Work("training", "lenet5", 32, times=10.0))
    assert whole_s == pytest.approx(np.median(third), rel=0.03)
    assert noise.sd_of(10) == pytest.approx(np.std(np.log(third)), rel=0.3)
    check = compare(profile, table)
    assert max(abs(point.error) for point in check.points) < 0.05
    others = read_stretches(tmp_path, {10: stretches(rng, 10)})
    assert compare(profile, others).median_error < 0.03


def test_one_length_cannot_tell_and_nothing_is_changed(tmp_path):
    table = read_stretches(tmp_path, {3: stretches(np.random.default_rng(5), 3)})
    assert add_starts(table) == table
    document = fit_profile(table, kind="table", name="stretches").document
    assert "starting" not in document
    assert "per_step" not in document["noise"]["training"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    path = tmp_path_factory.mktemp("profiles") / "made-up.yaml"
    calibration = fit_profile(
        measured_table(np.random.default_rng(0)), name="made-up", models=WORK
    )
    path.write_text(format_profile(calibration.document, "made up"))
    return calibration, path


def test_a_fitted_profile_is_read_back_and_predicts_the_truth(fitted):
    calibration, path = fitted
    profile = load_profile(path)
    assert calibration.recommended == profile.kind == "law"
    seconds = profile.seconds("training", model="middle", batch=24)
    assert seconds == pytest.approx(4e-4 + 1e-10 * 2.4e7 * 24, rel=0.05)
    seconds = profile.seconds("compression", model="large", strategy="top-k", k=300)
    assert seconds == pytest.approx(1e-5 + 2e-9 * 6e5 + 5e-9 * 300, rel=0.05)
    assert profile.provenance["threads"] == 1
    assert profile.noise["training"].log_sd == pytest.approx(0.04, rel=0.2)
    assert profile.warnings == []


def test_a_model_that_was_not_measured_is_estimated_with_its_error_and_a_warning(
    fitted,
):
    profile = load_profile(fitted[1])
    profile.models["new"] = ModelWork(300_000, 3e7, 9e7)
    seconds = profile.seconds("training", model="new", batch=32)
    assert seconds == pytest.approx(4e-4 + 1e-10 * 9e7 * 32, rel=0.1)
    seconds = profile.seconds("compression", model="new", strategy="top-k", k=1000)
    assert seconds == pytest.approx(1e-5 + 2e-9 * 3e5 + 5e-9 * 1000, rel=0.1)
    estimated = "training of new was not measured; estimated as a + b·flops, typical er"
    assert estimated in profile.warnings[0]
    assert len(profile.warnings) == 2


def test_a_fitted_profile_holds_on_another_session(fitted):
    other = measured_table(np.random.default_rng(99), sessions=1)
    check = compare(load_profile(fitted[1]), other)
    assert check.median_error < 0.05
    assert check.coverage >= 0.8


def test_a_table_profile_keeps_the_medians_and_knows_how_sessions_differ():
    table = measured_table(np.random.default_rng(5))
    document = fit_profile(table, kind="table", name="t", models=WORK).document
    assert document["kind"] == "table"
    assert set(document["training"]["small"]) == {4, 16, 32, 64}
    # two sessions with sd 0.02 and medians of 8 with sd 0.04·1.25/√8, for a new one
    # √(3/2) of it
    expected = math.sqrt(1.5 * (0.02**2 + (1.25 * 0.04) ** 2 / 8))
    assert document["uncertainty"]["training"] == pytest.approx(expected, rel=0.6)


def fit_rows(rows_by_size, *key):
    """The fit of one session of one model: size → seconds of its rows."""
    rows = [
        Row(key, float(x), t, "", "", 0)
        for x, times in rows_by_size.items()
        for t in times
    ]
    return fit_profile(MeasuredRows(tuple(rows), ()), name="x")


def test_a_law_that_misses_its_own_points_is_reported_and_the_table_recommended():
    # 4, 5 and 20 at 1, 5 and 20: no affine law does better than 19.15 % at all three
    points = {1e5: [4e-5], 5e5: [5e-5], 2e6: [2e-4]}
    calibration = fit_rows(points, "compression", "m", "top-k")
    assert calibration.curves[0].candidate.worst == pytest.approx(0.1915, abs=1e-3)
    assert calibration.recommended == "table"


def test_an_error_that_cannot_be_known_is_said_and_the_table_recommended():
    times = {8: [0.08] * 20, 32: [0.32] * 20}
    four = times | {16: [0.16] * 20, 64: [0.64] * 20}
    assert fit_rows(four, "training", "m", "").recommended == "law"
    for unknown, said in (
        # though the law goes through both
        (times, "training m cannot be known: with 2 sizes none can be left"),
        (
            four | {64: [0.64]},
            "a size was measured once, and fewer than 3 tell nothing",
        ),
    ):
        calibration = fit_rows(unknown, "training", "m", "")
        assert calibration.recommended == "table"
        assert said in " ".join(calibration.notes)


def test_it_is_said_how_many_repeats_noise_takes():
    def noise(repeats, sizes):
        rows = {x: [0.01 * x] * repeats for x in sizes}
        calibration = fit_rows(rows, "training", "m", "")
        notes = [note for note in calibration.notes if "noise" in note]
        return calibration.document.get("noise"), notes

    fitted, notes = noise(5, (8, 16, 32, 64))
    assert set(fitted) == {"training"}
    assert notes == []
    needs = "needs 20 rows of a kind of work, of sizes repeated at least 5 times"
    for repeats, sizes, counted in ((5, (8, 16, 32), 15), (4, range(1, 30), 0)):
        fitted, notes = noise(repeats, sizes)
        assert fitted is None
        assert needs in notes[0]
        assert f"training has {counted}; --repeat 20 is always enough" in notes[0]
    assert noise(20, (8,))[1] == []


def test_it_is_said_why_rows_were_dropped_and_of_what(tmp_path):
    path = tmp_path / "rows.csv"
    rows = [
        f"training,m,{x},{0.01 * x},{int(i < 2)}" for x in (8, 16, 32) for i in range(5)
    ]
    path.write_text("quantity,model,samples,seconds,preempted\n" + "\n".join(rows))
    notes = fit_profile(read_table([path]), name="x").notes
    note = next(note for note in notes if "left out (" in note)
    assert note.startswith(
        "6 of 15 rows left out (6 of training): the operating system gave the"
    )
    assert "column `preempted`" in note


def test_noise_that_no_law_describes_is_kept_as_quantiles():
    """Work under a quota: it passes at once, or waits for some of the next period."""
    rng = np.random.default_rng(4)
    factors = np.where(rng.random(400) < 0.45, 0.1, rng.uniform(0.7, 2.5, 400))
    factors /= np.median(factors)
    law = fit_noise(factors)
    assert law.quantiles
    assert law.mean() == pytest.approx(np.mean(factors), rel=0.05)
    draws = [law.factor(np.random.default_rng(i)) for i in range(2000)]
    assert np.mean(draws) == pytest.approx(law.mean(), rel=0.05)
    assert max(draws) <= law.quantiles[-1]
    again = Measured.read(law.written(), "noise")
    assert again.quantiles == pytest.approx(law.quantiles, rel=1e-3)
