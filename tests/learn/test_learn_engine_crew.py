"""Worker processes: the same bits however many, and a clean end whatever happens."""

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from engine_worlds import Host
from textbook import scenario

from simfed import InputError, RunFailed
from simfed.learn import Crew
from simfed.learn.pools import ForkedPool
from simfed.learn.shelf import share_memory


class Subject:
    """What the processes of these tests share."""

    def __init__(self):
        self.board = share_memory(64).view(torch.int64)
        self.number, self.seen = 0, 0

    def begin_process(self, number):
        self.number = number

    def square(self, x):
        return x * x

    def turn(self, x):
        """Which process takes it, and after how many others of its own."""
        self.both_at_work()
        self.seen += 1
        return self.number, self.seen

    def both_at_work(self):
        """Come back when each of two processes has a unit, so that none does all of
        them, however long the machine lets the other one wait.
        """
        self.board[4 + self.number] = 1
        while not self.board[5 - self.number]:
            time.sleep(0.001)

    def write(self, place):
        self.both_at_work()
        self.board[place] = self.number + 100
        return self.number

    def refuse(self, x):
        raise InputError("another number", got=x)

    def break_down(self, x):
        self.both_at_work()
        if self.number:
            raise KeyError("lost")
        return x

    def as_on_a_gpu_machine(self, x):
        self.both_at_work()
        if self.number:
            raise RuntimeError(
                "Unable to handle autograd's threading in combination with fork-based "
                "multiprocessing."
            )
        return x

    def die(self, x):
        self.both_at_work()
        if self.number:
            os.kill(os.getpid(), signal.SIGKILL)
        return x


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_results_come_in_the_order_of_the_units():
    with Crew(Subject(), 3) as crew:
        assert crew.map("square", range(10), [1.0] * 10) == [i * i for i in range(10)]
        assert crew.map("square", []) == []


def test_processes_write_to_the_same_memory():
    subject = Subject()
    with Crew(subject, 2) as crew:
        numbers = crew.map("write", [0, 1, 2, 3])
        assert sorted(set(numbers)) == [0, 1]
        assert subject.board[:4].tolist() == [100 + n for n in numbers]


def test_one_worker_forks_nothing():
    with Crew(Subject(), 1) as crew:
        assert crew._others == []
        assert crew.map("square", [3]) == [9]


def test_the_dearest_units_are_taken_first():
    costs = [1, 9, 5, 2, 8, 3]
    with Crew(Subject(), 2) as crew:
        turns = crew.map("turn", range(6), costs)
    done = sorted(zip(turns, costs, strict=True))
    taken = [[cost for (by, _), cost in done if by == number] for number in (0, 1)]
    assert all(mine == sorted(mine, reverse=True) for mine in taken)
    assert 9 in (taken[0][0], taken[1][0])


@pytest.mark.parametrize(
    ("method", "error", "sentence"),
    [
        ("refuse", InputError, "another number"),
        ("break_down", RuntimeError, r"(?s)break_down.*KeyError"),
        ("as_on_a_gpu_machine", RunFailed, "use 1 worker, or start"),
    ],
)
def test_an_error_in_a_worker_is_one_sentence_and_a_bug_shows_where(
    method, error, sentence
):
    with Crew(Subject(), 2) as crew, pytest.raises(error, match=sentence):
        crew.map(method, [1, 2])


def test_a_worker_that_died_is_one_sentence_and_stays_one():
    crew = Crew(Subject(), 2)
    with pytest.raises(RunFailed, match=r"process 1 was ended by SIGKILL .*checkpoint"):
        crew.map("die", [1, 2])
    with pytest.raises(RunFailed, match="start the run again"):
        crew.map("square", [1, 2])
    crew.close()


def test_closing_ends_the_processes_and_may_be_repeated():
    with Crew(Subject(), 3) as crew:
        pids = [worker.pid for worker in crew._others]
        assert all(map(alive, pids))
    assert not any(map(alive, pids))
    crew.close()


SCRIPT = textwrap.dedent(
    """
    import sys, signal
    from simfed.learn.crew import Crew

    class Subject:
        def wait(self, x):
            if x == "here":
                print("ready", flush=True)
            signal.pause()

    signal.signal(signal.SIGINT, signal.default_int_handler)
    crew = Crew(Subject(), 2)
    print(crew._others[0].pid, flush=True)
    try:
        crew.map("wait", ["here", "there"])
    finally:
        crew.close()
    """
)


@pytest.mark.parametrize(
    "ending",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, marks=pytest.mark.long),
    ],
)
def test_no_process_outlives_its_parent(ending):
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    child = os.pidfd_open(int(parent.stdout.readline()))
    assert parent.stdout.readline() == "ready\n"
    if ending == signal.SIGINT:
        os.killpg(parent.pid, ending)  # as Ctrl-C does: to the whole group
    else:
        os.kill(parent.pid, ending)
    _, errors = parent.communicate(timeout=30)
    # readable once the process is gone
    ended, _, _ = select.select([child], [], [], 30)
    os.close(child)
    assert ended
    if ending == signal.SIGINT:
        assert "KeyboardInterrupt" in errors
        assert "worker" not in errors.lower()  # the child says nothing of its own


@pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="beside a GPU, who has computed gradients cannot fork workers for more",
)
def test_dropout_in_a_model_of_a_user_s_own_is_keyed_by_client_and_round(add_part):
    def factory(input_shape, classes):
        linear = torch.nn.Linear(144, classes)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), linear)

    add_part("model", "with-dropout", factory)
    made = scenario("fedkd", prototypes={"a": {"model": "with-dropout"}}, rounds=2)
    outcomes = []
    for workers in (1, 2):
        torch.rand(workers)  # somebody else's draws
        before = torch.get_rng_state()
        host = Host(made, workers=workers)
        outcomes.append([each.outcome for each in host.rounds()])
        host.close()
        assert torch.equal(torch.get_rng_state(), before)
    assert outcomes[0] == outcomes[1]


def test_the_caller_s_thread_count_is_put_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        host = Host(scenario("fedavg"))
        assert torch.get_num_threads() == 1
        host.close()
        host.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_cohort_that_steps_together_is_shared_out_where_that_is_worth_it(monkeypatch):
    monkeypatch.setattr("simfed.learn.crew._WORTH_SHARING", 5e7)
    parts = partial(ForkedPool.parts, SimpleNamespace(workers=3))
    assert parts(4e7, 1) == 1
    assert [parts(6e7, groups) for groups in (1, 2, 3, 4)] == [3, 2, 1, 1]
