"""The comparison with other simulators: the task's file and the table, from made-up results."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import pytest
import rivals


def task(**changes):
    numbers = np.arange(12, dtype=np.float32)
    return rivals.Task(
        **{
            "model": "logistic-regression",
            "rounds": 20,
            "per_round": 2,
            "batch": 10,
            "rate": 0.03,
            "images": numbers.reshape(3, 1, 2, 2),
            "labels": np.array([0, 1, 2]),
            "test_images": numbers[:4].reshape(1, 1, 2, 2),
            "test_labels": np.array([1]),
            "owned": (np.array([2, 0]), np.array([1])),
            "weights": {"linear.weight": numbers.reshape(3, 4), "linear.bias": numbers[:3]},
            **changes,
        }
    )


def test_every_side_reads_the_task_that_was_written(tmp_path):
    written, path = task(), tmp_path / "task.npz"
    rivals.write_task(path, written)
    read = rivals.read_task(path)
    assert (read.model, read.rounds, read.per_round) == ("logistic-regression", 20, 2)
    assert (read.batch, read.rate, read.clients) == (10, 0.03, 2)
    assert [own.tolist() for own in read.owned] == [[2, 0], [1]]
    np.testing.assert_array_equal(read.images, written.images)
    assert set(read.weights) == {"linear.weight", "linear.bias"}
    np.testing.assert_array_equal(read.weights["linear.weight"], written.weights["linear.weight"])


def test_the_scenario_of_simfed_has_the_tasks_settings():
    from simfed.scenario import Scenario

    made = Scenario.model_validate(rivals.scenario(task(), "mnist-mini"))
    assert (made.rounds, made.client_count, made.participation.clients_per_round) == (20, 2, 2)
    assert (made.training.batch_size, made.training.learning_rate) == (10, 0.03)
    assert (made.training.local_epochs, made.dataset.partition.kind) == (1, "iid")


def of(side, turn, cpu_s, round_s=None, accuracy=0.91):
    pace = {} if round_s is None else {"round_cpu_s": round_s, "round_wall_s": 2 * round_s}
    facts = {"side": side, "turn": turn, "load": float(turn), "cpu_s": cpu_s, "wall_s": cpu_s}
    return {**facts, **pace, "peak_bytes": 5e8, "accuracy": accuracy, "versions": {side: "1.0"}}


def test_the_table_takes_ratios_within_a_turn_and_says_who_needs_least_first():
    results = {
        "job": 1,
        "dataset": "mnist",
        "machine": {"date": "2026-01-02", "processor": "a processor", "cores": 2},
        "runs": [
            *(of("simfed", turn, 2.0 * turn, 0.010 * turn) for turn in (1, 2, 3)),
            *(of("other", turn, 1.0 * turn, 0.030 * turn, 0.9 + 0.01 * turn) for turn in (1, 2, 3)),
            of("simfed run", 1, 5.0),
        ],
    }
    heading, _, _, _, *rows = rivals.table(results).splitlines()
    assert "a processor, 2 cores, load 1.0 to 3.0, 3 turn(s); other 1.0, simfed 1.0" in heading
    assert [row.split(" | ")[0] for row in rows] == ["| other", "| simfed", "| simfed run"]
    assert "| 60.0 ms (30.0–90.0) | 3.00 |" in rows[0]
    assert "| 2.0 s (1.0–3.0) | 0.50 |" in rows[0]
    assert rows[0].endswith("| 0.5 GB | 91.0–93.0 % |")
    assert "| – | – | – | 5.0 s | 2.50 |" in rows[2]


def test_processor_time_of_descendants_counts_and_that_of_others_does_not():
    begin, used_s = time.process_time(), rivals.cpu_seconds(os.getpid())[os.getpid()]
    while time.process_time() < begin + 0.1:
        sum(range(10_000))
    assert rivals.cpu_seconds(os.getpid())[os.getpid()] > used_s
    assert os.getppid() not in rivals.cpu_seconds(os.getpid())


def test_a_side_that_fails_is_said_with_its_last_words():
    with pytest.raises(SystemExit, match="no such thing"):
        rivals.measured([sys.executable, "-c", "raise SystemExit('no such thing')"])


def test_a_side_is_measured_from_start_to_end():
    facts = rivals.measured([sys.executable, "-c", "print('{\"accuracy\": 0.5}')"])
    assert facts["accuracy"] == 0.5
    assert facts["cpu_s"] > 0
    assert facts["wall_s"] > 0
