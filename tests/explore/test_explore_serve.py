"""The server of `simfed explore`: who may ask, which question wins, and what bad input
says.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
import yaml
from explored import explore, read_curve
from worlds import TINY

import simfed
from simfed import InputError, InputErrors
from simfed.explore.player import QuestionQueue
from simfed.explore.serve import serve

SCENARIO = {**TINY, "rounds": 4}
LEARNS = {**SCENARIO, "evaluation": {"every": 1}}


@pytest.fixture
def world(tmp_path):
    return explore(tmp_path / "scenario.yaml", SCENARIO)


@contextmanager
def served(what, ends_by=signal.SIGINT):
    """The address of a scenario's or run's page, from a process without a terminal."""
    command = [sys.executable, "-m", "simfed", "explore", what, "--no-browser"]
    folder = what.parent / "temporary"
    folder.mkdir()
    env = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=env
    ) as server:
        try:
            yield server.stdout.readline().strip()
        finally:
            server.send_signal(ends_by)
    assert list(folder.iterdir()) == []
    assert server.returncode == (0 if ends_by == signal.SIGINT else -signal.SIGTERM)


def fetch(address, body=None, **headers):
    """Return (status, headers, text) of a request."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.headers, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def question(seq, setting=None):
    return {"tab": "a", "seq": seq, "setting": setting or {}, "shown": [1, 2]}


def test_a_page_is_told_an_answer_in_parts(world):
    with served(world.source) as address:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{22}/", address)
        status, headers, page = fetch(address)
        assert (status, "<title>What if: tiny" in page) == (200, True)
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'" in policy
        assert "unsafe-eval" not in policy
        setting = {"clients[0].link.up": "1 Mbps"}
        _, _, lines = fetch(f"{address}ask", question(1, setting))
        part = json.loads(lines.splitlines()[-1])
        assert part["done"]
        made = world.apply(setting)
        run = simfed.run(made, time_only=True, progress=False)
        assert part["ends_s"] == run.rounds["finished_at_s"].tolist()
        taken = json.loads(fetch(f"{address}take", question(2, setting))[2])
        words = "--time-only --set 'clients[0].link.up=1 Mbps'"
        assert taken["command"].endswith(words)
        again = simfed.load_scenario(yaml.safe_load(taken["scenario"]))
        assert again.clients[0].link.up == made.clients[0].link.up


def test_nobody_else_is_answered(world):
    with served(world.source) as address:
        for other in (address[:-5] + "xxxx/", re.sub("[^/]*/$", "", address)):
            assert fetch(other)[0] == 404
        assert fetch(address, Host="evil.example")[0] == 400
        assert fetch(f"{address}ask", Host="evil.example", body=question(1))[0] == 400


def test_the_newest_question_of_a_page_wins_and_pages_do_not_disturb_one_another(world):
    player, answers = QuestionQueue(world), {}

    def ask(page, number):
        answers[page, number] = list(player.ask(page, number, question(number)))

    asked = [("a", number) for number in (3, 1, 2, 9, 5)] + [("b", 1)]
    threads = [threading.Thread(target=ask, args=one) for one in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for newest in (("a", 9), ("b", 1)):
        assert answers[newest][-1]["done"]
    for parts in answers.values():
        assert parts[-1].get("done") or parts[-1].get("stale")
        assert len({part["seq"] for part in parts}) == 1
    late = list(player.ask("a", 4, question(4)))
    assert late == [{"seq": 4, "stale": True}]


def test_a_real_run_makes_its_setting_known(tmp_path):
    folder = tmp_path / "run"
    simfed.run(LEARNS, folder, progress=False, workers=1)
    setting = {"participation.clients_per_round": 1}
    with served(folder, signal.SIGTERM) as address:

        def ask(seq):
            lines = fetch(f"{address}ask", question(seq, setting))[2].splitlines()
            return json.loads(lines[-1])

        assert ask(1)["unknown"] == 1
        fetch(f"{address}real", question(1, setting))
        for _ in range(600):
            state = json.loads(fetch(f"{address}real")[2])
            if state["status"] != "running":
                break
            threading.Event().wait(0.1)
        assert state == {"status": "done"}
        told = ask(2)
        made = simfed.load_scenario(LEARNS, overrides=setting)
        run = simfed.run(made, progress=False, workers=1)
        assert told["unknown"] is None
        assert told["curve"]["a"] == read_curve(run)
        assert [*(tmp_path / "temporary").glob("simfed-explore-*/run/journal*")]


@pytest.mark.parametrize(
    ("setting", "over", "values"),
    [
        ({"clients[0].link.up": "3 Mbps"}, "clients[0].link.down", ["0.5×", "2×"]),
        ({"compression.k": 9}, "compression.k", [10, 1000]),
        (
            {"aggregation.mode": "deadline"},
            "aggregation.deadline",
            ["60 ms", "1000 ms"],
        ),
    ],
)
def test_a_study_over_a_slider_is_what_its_settings_are(
    tmp_path, setting, over, values
):
    drawn = {"up": "5 Mbps", "down": {"lognormal": {"median": "9 Mbps", "cv": 0.5}}}
    group = {**SCENARIO["clients"][0], "link": drawn}
    world = explore(tmp_path / "scenario.yaml", {**SCENARIO, "clients": [group]})
    study = tmp_path / "study.yaml"
    study.write_text(world.write_study(setting, over, values))
    options = {"time_only": True, "progress": False}
    runs = simfed.run_study(study, tmp_path / "out", trajectories=None, **options)
    ends_s = runs.rounds.groupby(over, sort=False)["finished_at_s"].max().tolist()
    for value, end_s in zip(values, ends_s, strict=True):
        run = simfed.run(world.apply({**setting, over: value}), **options)
        assert end_s == run.rounds["finished_at_s"].max()
    with pytest.raises((InputError, InputErrors), match="upp"):
        world.write_study({}, "clients[0].link.upp", ["1 Mbps"])


def test_a_busy_port_and_a_policy_that_learns_are_sentences(world, tmp_path):
    with served(world.source) as address:
        port = int(address.split(":")[2].split("/")[0])
        with pytest.raises(InputError, match=r"--port: got .*expected a free port"):
            serve(world, port, print)
    with pytest.raises(InputErrors, match="a policy that needs no rewards"):
        explore(tmp_path / "exp3.yaml", {**SCENARIO, "policy": {"kind": "exp3"}})
