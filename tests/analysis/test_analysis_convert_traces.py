"""Public availability records become traces, and nothing foreign is run on the way."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from convert_traces import fedscale, flash, main, read_plain_pickle

from simfed.fleet.availability import PresenceTrace, read_trace
from simfed.ground.errors import InputError

FEDSCALE = {
    12: {
        "duration": 60,
        "active": [10, 70],
        "inactive": [20, 90],
        "finish_time": 100,
        "model": "M1",
    },
    3: {
        "duration": 5,
        "active": [95],
        "inactive": [],
        "finish_time": 100,
        "model": "M2",
    },
    40: {"duration": 0, "active": [], "inactive": [], "finish_time": 50, "model": "M3"},
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_fedscale_pickles_of_plain_values_are_read(tmp_path, protocol):
    (tmp_path / "t").write_bytes(pickle.dumps(FEDSCALE, protocol))
    assert read_plain_pickle(tmp_path / "t") == FEDSCALE


def test_fedscale_clients_come_and_go_again_and_again(tmp_path):
    assert fedscale(FEDSCALE, None) == [[(95, 100)], [(10, 20), (70, 90)], []]
    assert fedscale(FEDSCALE, 175.0) == [
        [(95, 100)],
        [(10, 20), (70, 90), (110, 120), (170, 175)],
        [],
    ]
    (tmp_path / "t").write_bytes(pickle.dumps(FEDSCALE))
    assert (
        main(
            [
                "fedscale",
                str(tmp_path / "t"),
                str(tmp_path / "o.csv"),
                "--until",
                "200 s",
            ]
        )
        == 0
    )
    there = PresenceTrace(read_trace(str(tmp_path / "o.csv")), np.array([0, 1]))
    assert [there.mask(t).tolist() for t in (15, 97, 115, 200)] == [
        [False, True],
        [True, False],
        [False, True],
        [False, False],
    ]


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_names_a_function_is_refused_and_not_run(
    tmp_path, protocol, capsys
):
    (tmp_path / "t").write_bytes(pickle.dumps({1: Bomb(tmp_path / "ran")}, protocol))
    assert main(["fedscale", str(tmp_path / "t"), str(tmp_path / "o.csv")]) == 2
    assert "a pickle of builtin containers and numbers alone" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "o.csv").exists()


def test_flash_devices_are_there_on_charger_and_wifi_and_unused():
    lines = [
        "2020-01-28 06:00:00\twifi",
        "2020-01-28 06:10:00\tbattery_charged_on",
        "2020-01-28 06:20:00\tscreen_off",
        "2020-01-28 06:30:00\tscreen_on",
        "2020-01-28 06:40:00\tscreen_lock",
        "2020-01-28 06:45:00\t87.0%",
        "not an event",
        "2020-01-28 07:00:00\t4G",
        "2020-01-29 01:00:00\twifi",
        "2020-01-29 02:00:00\tphone_on",
    ]
    record = {
        "10": {"messages": "2020-01-28 23:00:00\tscreen_off"},
        "2": {"messages": "\n".join(lines)},
    }
    spans, bad = flash(record)
    assert spans == [[(22_800, 23_400), (24_000, 25_200), (90_000, 93_600)], []]
    assert bad == 1


@pytest.mark.parametrize(
    ("source", "content", "sentence"),
    [
        ("flash", b"{", "JSON"),
        ("flash", b"[]", "a mapping of devices to messages"),
        ("flash", json.dumps({"1": {"messages": ""}}).encode(), "at least one event"),
        ("flash", b'{"1": {}}', "device 1: got {}, expected messages"),
        ("fedscale", b"no pickle", "a pickle"),
        ("fedscale", pickle.dumps([1]), "a mapping of client ids"),
        (
            "fedscale",
            pickle.dumps({1: {"active": [1]}}),
            "client 1: got {'active': [1]}, expected active, inactive",
        ),
        (
            "fedscale",
            pickle.dumps({1: {**FEDSCALE[3], "finish_time": 0}}),
            ("a finish_time above 0"),
        ),
    ],
)
def test_what_is_no_record_is_one_sentence(tmp_path, source, content, sentence, capsys):
    (tmp_path / "t").write_bytes(content)
    assert main([source, str(tmp_path / "t"), str(tmp_path / "o.csv")]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="a readable file"):
        read_plain_pickle(tmp_path / "none")
