"""Orders of configurations, simulated and real."""

import numpy as np
import pytest
from scipy import stats

import simfed
from simfed.cli import main
from simfed.ground.errors import InputError
from simfed.study.orders import compare_orders


def measured(*means, sd=0.0, count=5):
    rng = np.random.default_rng(0)
    return {f"c{i}": list(mean + sd * rng.standard_normal(count)) for i, mean in enumerate(means)}


def test_the_same_order_is_1_and_a_reversed_one_minus_1():
    real = measured(1, 2, 3, 4, sd=0.01)
    same = compare_orders(measured(10, 20, 30, 40), real)
    assert (same.tau, same.low, same.high, same.separated, same.swapped) == (1, 1, 1, 6, ())
    reversed_ = compare_orders(measured(4, 3, 2, 1), real)
    assert (reversed_.tau, len(reversed_.swapped)) == (-1, 6)
    assert reversed_.swapped[0] == ("c0", "c1")


def test_tau_is_scipys_with_ties():
    simulated, real = (1, 1, 2, 5, 4), (1, 2, 3, 4, 5)
    orders = compare_orders(measured(*simulated), measured(*real, sd=1e-3))
    assert orders.tau == pytest.approx(stats.kendalltau(simulated, real).statistic)
    assert ("c0", "c1") in orders.swapped  # a tie is not reality's order
    assert ("c3", "c4") in orders.swapped


def test_scatter_of_reality_opens_the_interval_and_separates_less():
    orders = compare_orders(measured(1, 2, 3, 4), measured(1, 1.1, 1.2, 4, sd=1.0))
    assert orders.low < orders.high
    assert orders.separated < 6


def test_single_measurements_separate_nothing():
    orders = compare_orders(measured(1, 2, 3), measured(3, 2, 1, count=1))
    assert (orders.tau, orders.separated) == (-1, 0)


def test_two_configurations_are_no_order():
    with pytest.raises(InputError, match="3 configurations or more"):
        compare_orders(measured(1, 2), measured(1, 2))


def test_compare_prints_the_orders_of_two_folders(tmp_path, capsys):
    def play(folder, training):
        scenario = {
            "name": "order",
            "rounds": 4,
            "method": "fedavg",
            "dataset": {"name": "mnist-mini"},
            "prototypes": {"one": {"model": "logistic-regression"}},
            "clients": [
                {"count": 2, "prototype": "one", "device": {"training": training}, "link": {}}
            ],
            "training": {"local_steps": 1},
            "compression": {"strategies": ["dense"]},
            "policy": {"kind": "uniform", "strategy": "dense"},
        }
        simfed.run(scenario, out=folder, time_only=True, progress=False)

    for name, seconds in (("slow", 3), ("medium", 2), ("fast", 1)):
        play(tmp_path / "simulated" / name, f"{seconds} s")
        for repetition in (1, 2):
            play(tmp_path / "other" / name / str(repetition), f"{seconds + repetition / 100} s")
    folders = [str(tmp_path / "simulated"), str(tmp_path / "other")]
    assert main(["compare", *folders]) == 0
    told = capsys.readouterr().out
    assert "3 configurations: Kendall's τ 1.00 (95 %: 1.00 to 1.00)" in told
    assert "other separates 3 of 3 pairs; 3 of them are in order" in told
    assert main(["compare", *folders, "--bound", "5%"]) == 2
    (tmp_path / "other" / "odd").mkdir()
    assert main(["compare", *folders]) == 2
    assert "odd: neither a run directory nor a folder of them" in capsys.readouterr().err
