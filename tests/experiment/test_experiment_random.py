"""Whole runs of whatever can be chosen together: nothing in them is broken, and one that was
stopped comes to the same."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from random_scenarios import draw_scenario

import simfed
from simfed.ground.errors import Interrupted, RunFailed
from simfed.verify.run import verify

LONG = 400


def assert_whole(seed, folder):
    scenario = draw_scenario(seed)
    try:
        run = simfed.run(scenario, folder / "whole", progress=False, workers=1)
    except RunFailed:
        return  # said in a sentence: nobody stays for as long as it takes
    assert verify(run.path) == [], seed

    def stop(round, time_s, accuracy):
        if round == 1 + seed % 3:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        simfed.run(scenario, folder / "again", progress=stop, workers=1)
    again = simfed.run(scenario, folder / "again", progress=False, workers=1, resume=True)
    assert again.fingerprint == run.fingerprint, seed
    assert verify(again.path) == [], seed


@pytest.mark.parametrize("seed", range(16))
def test_a_random_run_is_whole_and_goes_on_from_where_it_was_stopped(tmp_path, seed):
    assert_whole(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 100 + LONG, 20))
def test_many_random_runs_are_whole(tmp_path, first):
    """In a process of their own, whose memory no other test inherits."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        played = [
            process.submit(assert_whole, seed, tmp_path / str(seed))
            for seed in range(first, first + 20)
        ]
        for one in played:
            one.result()
