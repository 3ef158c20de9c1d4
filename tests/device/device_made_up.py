"""Measurements of a made-up device, whose times are known."""

import csv
import math

from simfed.device import MeasuredRows, ModelWork, Row

WORK = {
    "small": ModelWork(20_000, 1e6, 3e6),
    "middle": ModelWork(100_000, 8e6, 2.4e7),
    "large": ModelWork(600_000, 1e8, 3e8),
}


def measured_table(
    rng, *, sessions=2, repeats=8, models=WORK, scatter=0.04, session_sd=0.02
):
    """Rows of a made-up device: affine in batch, compression affine in d and k."""
    rows = []
    for session in range(sessions):
        for model, work in models.items():
            curves = [
                (
                    ("training", model, ""),
                    batch,
                    4e-4 + 1e-10 * work.train_flops * batch,
                )
                for batch in (4, 16, 32, 64)
            ] + [
                (
                    ("compression", model, "top-k"),
                    k,
                    1e-5 + 2e-9 * work.parameters + 5e-9 * k,
                )
                for k in (100, 1000, 5000, 20_000)
            ]
            for key, x, seconds in curves:
                at = seconds * math.exp(session_sd * rng.standard_normal())
                rows += [
                    Row(
                        key,
                        float(x),
                        at * math.exp(scatter * rng.standard_normal()),
                        str(session),
                        "",
                        0,
                    )
                    for _ in range(repeats)
                ]
    return MeasuredRows(
        tuple(rows),
        (("made-up.csv", "0" * 64),),
        {"threads": ["1"], "machine": ["x86_64"]},
    )


def write_csv(path, table, slower=1):
    """The table as a CSV file, of a device so many times slower."""
    names = ["quantity", "model", "strategy", "session", "seconds", "k", "samples"]
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "threads"])
        for row in table.rows:
            sizes = ("", row.size) if row.key[0] == "training" else (row.size, "")
            writer.writerow([*row.key, row.session, slower * row.seconds, *sizes, 1])
    return path
