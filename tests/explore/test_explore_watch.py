"""A run under way: its page goes on as it does, and ends with it."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from functools import partial

import pytest
import yaml
from explored import answer
from worlds import TINY

import simfed
from simfed import Interrupted
from simfed.explore import ExploredWorld

WORLD = {**TINY, "rounds": 6, "evaluation": {"every": 1}}


@pytest.fixture
def stopped(tmp_path):
    """The folder of a run that was stopped in its fourth round."""

    def stop(round, _at_s, _value):
        if round == 4:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        simfed.run(WORLD, tmp_path / "run", progress=stop, workers=1)
    return tmp_path / "run"


def test_a_run_that_was_stopped_is_known_as_far_as_it_came(stopped):
    world = ExploredWorld(stopped)
    whole = simfed.run(WORLD, progress=False, workers=1)
    for follow in (False, True):
        told = answer(world, follow=follow)
        assert (told["unknown"], told["done"]) == (5, True)
        assert told["ends_s"] == whole.rounds["finished_at_s"].tolist()
        assert [point[0] for point in told["curve"]["a"]] == [1, 2, 3, 4]
        assert told["why"] is None
    told = answer(world, setting={"participation.clients_per_round": 1})
    assert (told["unknown"], told["why"]) == (1, "client 0 takes no part")
    assert world.describe()["open"]
    simfed.run(WORLD, stopped, progress=False, workers=1, resume=True)
    assert answer(world)["unknown"] is None
    assert not world.describe()["open"]


def test_run_watch_serves_its_page_until_somebody_has_seen_enough(tmp_path):
    path, out = tmp_path / "scenario.yaml", tmp_path / "run"
    path.write_text(yaml.safe_dump({**WORLD, "rounds": 60}))
    command = [sys.executable, "-m", "simfed", "run", path, "--out", out]
    with subprocess.Popen(
        [*command, "--watch", "--no-figures"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "BROWSER": "true"},
        # a shell's job in the background ignores Ctrl-C, and so would what it starts
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),
    ) as run:
        address = run.stdout.readline().strip()
        body = json.dumps({"tab": "a", "seq": 1, "setting": {}, "follow": True})
        with urllib.request.urlopen(f"{address}ask", body.encode()) as told:
            parts = [json.loads(line) for line in told]
        with urllib.request.urlopen(f"{address}about") as about:
            assert json.load(about)["open"] is False
        for line in run.stderr:
            if line == "the page stays until Ctrl-C\n":
                break
        run.send_signal(signal.SIGINT)
        try:
            run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 0
    *before, last = parts
    assert last["done"]
    assert not any(part["done"] for part in before)
    lengths = [len(part["ends_s"]) for part in parts]
    assert lengths == sorted(lengths)
    rounds = simfed.load_run(out).rounds
    assert last["ends_s"] == rounds["finished_at_s"].tolist()
    assert last["unknown"] is None
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=5)
