"""Replay against a tiny learner whose every number depends on its whole past."""

import json
import multiprocessing
import os
import random
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simfed import InputError, RunFailed
from simfed.fleet import Evaluation, Outcome, Task
from simfed.ground import Field, Plan, Size, Who
from simfed.policy import Choice
from simfed.replay import Cached, TrajectoryStore

CLIENTS = 3
ARMS = ("top-k", "random-k", "periodic-k")
PLAN = Plan({}, (), {"update": Field("update", 100, compressed=True)})
WHO = [
    Who(client, "p", Size("m", 100, 0, 10, CLIENTS), 32) for client in range(CLIENTS)
]


def size_of(arm, k, index_code):
    return None if index_code == "rice" else 8.0 * k + ARMS.index(arm)


def task_of(round, client, version):
    return Task(round, client, WHO[client], PLAN, version, 400.0)


class Upload:
    told = None

    def __init__(self, learner, task, choice):
        self.learner, self.task, self.choice = learner, task, choice

    def uplink_bytes(self):
        choice, learner = self.choice, self.learner
        size_bytes = size_of(choice.strategy, choice.k, learner.index_code)
        residual = learner.residuals[self.task.client]
        return size_bytes if size_bytes is not None else 4.0 * choice.k + residual % 97


class Learner:
    """Residuals and a weight that mix everything that ever happened, in integers."""

    def __init__(self, index_code="ideal", evaluate_last=None, flaw=0):
        self.index_code, self.evaluate_last = index_code, evaluate_last
        self.weight, self.version, self.flaw = 1, 0, flaw
        self.residuals, self.open, self.merged = [1] * CLIENTS, {}, 0

    def task(self, round, client, turn=0):
        return task_of(round, client, self.version)

    def execute(self, task, choice):
        assert task == self.task(task.round, task.client)
        mixed = self.residuals[task.client] * 31 + self.weight * 7 + choice.k
        mixed += ARMS.index(choice.strategy)
        self.residuals[task.client] = mixed % 1_000_003
        self.open[task.client] = Upload(self, task, choice)
        return self.open[task.client]

    def merge(self, round, contributions, weights=()):
        self.merged += 1
        for client in sorted(upload.task.client for upload in contributions):
            del self.open[client]
            self.weight = (self.weight * 17 + self.residuals[client]) % 1_000_003
        rolled_back = self.weight % 5 == 0
        self.version += not rolled_back
        evaluated = round % 2 == 0 or round == self.evaluate_last
        return Outcome(
            round=round,
            model_version=self.version,
            rolled_back=rolled_back,
            forced_arm="top-k" if rolled_back else None,
            losses={"p": {"kd_loss": self.weight / 7}, "q": {"kd_loss": float("inf")}},
            shared_loss={"p": self.weight / 7 + self.flaw, "q": float("inf")},
            evaluation={"p": Evaluation(self.weight / 1e6, 0.1)} if evaluated else {},
        )

    def discard(self, contribution):
        del self.open[contribution.task.client]
        self.residuals[contribution.task.client] += 5

    def contribution(self, task):
        return self.open[task.client]

    def state(self):
        at_work = [
            [u.task.round, client, u.task.model_version, u.choice.label]
            for client, u in self.open.items()
        ]
        facts = {"version": self.version, "weight": self.weight, "open": at_work}
        return facts, {"residuals": np.array(self.residuals)}

    def restore(self, facts, arrays):
        self.weight, self.version = facts["weight"], facts["version"]
        self.residuals = arrays["residuals"].tolist()
        for round, client, version, label in facts["open"]:
            task = task_of(round, client, version)
            self.open[client] = Upload(self, task, Choice.of(label))

    def timings(self):
        return {"gradients": 1.0}

    def close(self):
        pass


def known_of(index_code, last):
    """What is known of tasks without learning."""
    return SimpleNamespace(
        method=SimpleNamespace(personal=False),
        is_evaluated=lambda round: round % 2 == 0 or round == last,
        place=lambda edges: None,
        downlink_varies=lambda task: False,
        task=lambda round, client, version, turn=0, held=None: task_of(
            round, client, version
        ),
        uplink_bytes=lambda task, choice: size_of(
            choice.strategy, choice.k, index_code
        ),
    )


class Built(list):
    """Makes learners and keeps them for inspection."""

    warnings = ()

    def __init__(self, index_code="ideal", evaluate_last=None, flaw=0):
        super().__init__()
        self.options = index_code, evaluate_last, flaw

    def __call__(self):
        self.append(Learner(*self.options))
        return self[-1]


def replaying(store, built=None, key="k", **options):
    built = Built() if built is None else built
    known = known_of(*built.options[:2])
    return Cached(known, built, store.open(key, {"what": "a test"}), **options), built


def play(workload, decisions, first=1):
    """One synchronous round per entry: {client: (arm, k, arrives)}.

    Everything that came out.
    """
    seen = []
    for round, decided in enumerate(decisions, first):
        started = [
            (workload.execute(workload.task(round, client), Choice(arm, k)), arrives)
            for client, (arm, k, arrives) in decided.items()
        ]
        seen += [c.uplink_bytes() for c, _ in started]
        for contribution, arrives in started:
            if not arrives:
                workload.discard(contribution)
        seen.append(merge(workload, round, [c for c, arrives in started if arrives]))
    return seen


def merge(workload, round, contributions):
    """What came out, as a journal has it."""
    return json.dumps(workload.merge(round, contributions).plain())


def fixed(rounds, arm="top-k", k=10):
    return [dict.fromkeys(range(CLIENTS), (arm, k, True)) for _ in range(rounds)]


@pytest.fixture
def store(tmp_path):
    return TrajectoryStore(tmp_path / "cache")


def run(store, decisions, built=None, **options):
    """Play over the store as it is learned alone, and return the learners built, with
    what was warned of.
    """
    workload, built = replaying(store, built, **options)
    assert play(workload, decisions) == play(Learner(*built.options), decisions)
    workload.close()
    built.warnings = workload.warnings
    return built


def test_a_run_that_leaves_the_path_goes_on_from_the_nearest_kept_state(store):
    run(store, fixed(12), state_every=5)
    other = fixed(8) + fixed(4, arm="random-k")
    built = run(store, other, state_every=5)
    assert built[0].merged == 7  # states after rounds 5 and 10: rounds 6 … 12 again
    # its branch is now known, as is the state at the fork
    third = fixed(8) + fixed(4, arm="periodic-k")
    assert run(store, third, state_every=5)[0].merged == 4
    assert run(store, other) == []


def test_a_longer_run_goes_on_from_the_end_of_a_shorter_one(store):
    run(store, fixed(7))
    assert run(store, fixed(10))[0].merged == 3


def test_an_evaluation_only_for_being_the_last_is_another_outcome(store):
    run(store, fixed(5), Built(evaluate_last=5), state_every=2)
    # round 5 came out anew: its outcome has no evaluation
    assert run(store, fixed(6))[0].merged == 6 - 4


def test_the_order_of_lost_uploads_is_no_decision_but_who_lost_is(store):
    def one_round(lost):
        workload, built = replaying(store)
        started = [
            workload.execute(workload.task(1, c), Choice("top-k", 3))
            for c in range(CLIENTS)
        ]
        for client in lost:
            workload.discard(started[client])
        workload.merge(1, [c for c in started if c.task.client not in lost])
        following = play(workload, fixed(2), first=2)
        workload.close()
        return following, len(built)

    following, _ = one_round([0, 1])
    assert one_round([1, 0]) == (following, 0)
    assert one_round([1, 2])[1] == 1


def test_where_clients_belong_is_a_decision(store):
    one, other = replaying(store)[0], replaying(store)[0]
    one.place([[0, 1], [2]])
    other.place([[0], [1, 2]])
    assert one.key != other.key


def test_learning_that_does_not_come_out_again_is_an_error(store):
    run(store, fixed(4), state_every=100)
    for state in store.folder.rglob("*.safetensors"):
        state.unlink()
    workload, _ = replaying(store, Built(flaw=1))
    with pytest.raises(RunFailed, match="did not come out again"):
        play(workload, fixed(6))


def test_clients_at_work_across_merges_keep_their_contributions(store):
    """Client 2 stays at work over several merges, and over the state that is gone on
    from.
    """

    def play_asynchronously(workload, last):
        slow = workload.execute(workload.task(1, 2), Choice("random-k", 4))
        pairs = [dict.fromkeys((0, 1), ("top-k", 5, True))] * 3
        seen = [slow.uplink_bytes(), *play(workload, pairs)]
        seen.append(merge(workload, last, [slow]))
        workload.close()
        return seen

    for last, merged in ((4, [4]), (4, []), (5, [1])):
        workload, built = replaying(store, state_every=1)
        assert play_asynchronously(workload, last) == play_asynchronously(
            Learner(), last
        )
        assert [learner.merged for learner in built] == merged


def test_who_charges_otherwise_shares_what_is_learned_and_no_sizes(store):
    for code, learners in (("rice", 1), ("ideal", 0)):
        run(store, fixed(4), Built(index_code=code), key=code, charged="buffers")
        built = Built(index_code=code)
        run(store, fixed(4), built, key=code, charged="no buffers")
        assert len(built) == learners


decided = st.tuples(
    st.sampled_from(ARMS), st.sampled_from([5, 9]), st.sampled_from([True, True, False])
)
rounds_decided = st.lists(
    st.dictionaries(st.sampled_from(range(CLIENTS)), decided, min_size=1).map(
        lambda d: dict(sorted(d.items()))
    ),
    min_size=1,
    max_size=6,
)


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    runs=st.lists(rounds_decided, min_size=2, max_size=4),
    code=st.sampled_from(["ideal", "rice"]),
)
def test_whatever_is_decided_replaying_and_learning_agree(tmp_path, runs, code):
    store = TrajectoryStore(tmp_path / f"{random.getrandbits(64):x}")
    for decisions in (*runs, runs[0]):
        run(store, decisions, Built(index_code=code), key=code, state_every=2)


# --- the cache on disk ----------------------------------------------------------------


def test_a_changed_byte_of_the_cache_never_reaches_a_result_unnoticed(tmp_path):
    cache, whole = tmp_path / "cache", tmp_path / "whole"
    for _ in range(2):
        built = run(TrajectoryStore(cache), fixed(6), state_every=2)
    assert (built, built.warnings) == ([], [])
    shutil.copytree(cache, whole)
    for file in sorted(whole.rglob("*.*")):
        for at in range(0, file.stat().st_size, 50):
            shutil.rmtree(cache)
            shutil.copytree(whole, cache)
            place, content = cache / file.relative_to(whole), file.read_bytes()
            place.write_bytes(
                content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
            )
            # one round more: it goes on from a kept state, perhaps the one that was
            # changed
            said = run(TrajectoryStore(cache), fixed(7), state_every=2).warnings
            # a last line without its end is one that was being written
            torn = at == len(content) - 1
            if file.suffix == ".jsonl" and not torn:
                assert any(str(place) in sentence for sentence in said), (file.name, at)


def test_an_edited_step_is_learned_again_and_it_is_said(store):
    run(store, fixed(4))
    (part,) = store.folder.rglob("steps-*.jsonl")
    lines = part.read_text().splitlines()
    node, fact, digest = json.loads(lines[1])
    fact[4]["p"] += 1.0
    lines[1] = json.dumps([node, fact, digest])
    part.write_text("\n".join(lines) + "\n")
    built = run(store, fixed(4))
    assert len(built) == 1
    (said,) = built.warnings
    assert said.startswith(
        f"{part}: 1 of 4 lines are damaged and were not used, the first one is line 2"
    )


def test_steps_and_states_of_another_learning_are_not_used(store):
    run(store, fixed(4), key="a", state_every=2)
    shutil.move(store.folder / "a", store.folder / "b")
    built = run(store, fixed(4), key="b")
    assert len(built) == 1
    assert "4 of 4 lines are damaged" in built.warnings[0]


def test_a_changed_state_is_not_gone_on_from(store):
    run(store, fixed(4), state_every=4)
    (state,) = store.folder.rglob("*.safetensors")
    content = bytearray(state.read_bytes())
    content[-8] ^= 1  # of the first residual
    state.write_bytes(content)
    built = run(store, fixed(5), state_every=50)
    assert built[0].merged == 5
    assert built.warnings == [
        f"{state}: damaged and not used; `simfed cache clear` removes it"
    ]


def test_a_cache_that_cannot_be_written_costs_time_and_nothing_else(tmp_path):
    place = tmp_path / "file"
    place.write_text("")  # no folder can be made
    (warning,) = run(TrajectoryStore(place), fixed(3)).warnings
    assert "not kept for replay" in warning
    assert str(place) in warning


def test_what_fills_the_disk_in_mid_run_is_only_not_kept(store, monkeypatch):
    import safetensors.numpy

    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.numpy, "save_file", full)
    run(store, fixed(4), state_every=2)
    assert list(store.folder.rglob(".partial*")) == []


def test_listing_and_clearing(store):
    assert store.kept() == []
    run(store, fixed(4), key="aa")
    run(store, fixed(6), key="ab")
    assert sorted((k.key, k.steps) for k in store.kept()) == [("aa", 4), ("ab", 6)]
    kept = store.kept()[0]
    assert kept.about == {"what": "a test"}
    assert kept.size_bytes > 0
    assert store.clear("aa") == 1
    assert [k.key for k in store.kept()] == ["ab"]
    with pytest.raises(InputError, match=r"got 'zz', expected the beginning"):
        store.clear("zz")
    assert store.clear() == 1
    assert store.kept() == []


def test_a_trajectory_that_is_being_written_counts_as_used(tmp_path):
    mine = TrajectoryStore(tmp_path).open("a", {})
    mine.keep_state("n1", {}, {"w": np.zeros(4)})
    about = tmp_path / "a" / "about.json"
    os.utime(about, (1.0, 1.0))  # opened long ago
    mine.keep_state("n2", {}, {"w": np.zeros(4)})
    assert about.stat().st_mtime > 1.0


def test_trimming_keeps_what_was_used_last(tmp_path):
    store = TrajectoryStore(tmp_path)
    for age, key in ((300, "old"), (200, "middle"), (100, "new")):
        run(store, fixed(4), key=key)
        os.utime(tmp_path / key / "about.json", (1e9 - age, 1e9 - age))
    sizes = {k.key: k.size_bytes for k in store.kept()}
    (state,) = (tmp_path / "old").rglob("*.safetensors")
    state_bytes = state.stat().st_size
    # states go before steps, the oldest first
    TrajectoryStore(tmp_path, sum(sizes.values()) - state_bytes).trim()
    assert {k.key: k.states for k in store.kept()} == {"new": 1, "middle": 1, "old": 0}
    TrajectoryStore(tmp_path, sizes["new"] - state_bytes).trim()
    assert [(k.key, k.states) for k in store.kept()] == [("new", 0)]


def test_few_states_are_kept_of_a_long_run(store):
    run(store, fixed(100), state_every=1)
    (trajectory,) = store.kept()
    assert 8 <= trajectory.states <= 17
    built = run(store, fixed(60) + fixed(5, arm="random-k"))
    assert built[0].merged <= 5 + 40


def test_a_state_that_would_crowd_out_the_rest_is_not_kept(tmp_path):
    store = TrajectoryStore(tmp_path, limit_bytes=100)
    run(store, fixed(4), state_every=1)
    (trajectory,) = store.kept()
    assert (trajectory.steps, trajectory.states) == (4, 0)


def _play_many(folder, arm, results):
    store = TrajectoryStore(folder)
    for _ in range(3):
        run(store, fixed(30, arm=arm), state_every=3)
    results.put(arm)


def test_several_processes_share_a_cache(tmp_path):
    context = multiprocessing.get_context("fork")
    results, arms = context.Queue(), sorted([*ARMS, *ARMS])
    for arm in arms:
        context.Process(target=_play_many, args=(tmp_path, arm, results)).start()
    assert sorted(results.get(timeout=60) for _ in arms) == arms
    for process in multiprocessing.active_children():
        process.join()
    store = TrajectoryStore(tmp_path)
    for arm in ARMS:
        assert run(store, fixed(30, arm=arm)) == []
