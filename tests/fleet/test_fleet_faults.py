"""When strikes come and what they do to work, against plain lists of intervals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed import RunFailed
from simfed.fleet import Messages, Rhythm
from simfed.fleet.faults import Exponential, Strikes
from simfed.ground import Discrete, Streams, UniformLaw


def strikes(between, lasts, *keys, seed=0):
    return Strikes(Rhythm(between, lasts), Streams(seed), *(keys or ("freeze", 0)))


def intervals(strikes, count=100):
    return [
        (strikes.border_s(2 * k), strikes.border_s(2 * k + 1)) for k in range(count)
    ]


times = st.floats(0.05, 5.0)


@given(
    a=times,
    b=times,
    seed=st.integers(0, 50),
    start=st.floats(0, 20),
    work=st.floats(0, 9),
)
def test_work_is_stretched_by_exactly_the_strikes_that_it_meets(
    a, b, seed, start, work
):
    struck = strikes(Exponential(a), UniformLaw(0.5 * b, b), seed=seed)
    whole, within = struck.stretch(start, work)
    at, left, met = start, work, []
    for begun, ended in intervals(struck, 800):
        if ended <= at or left <= 0:
            continue
        free = max(begun - at, 0.0)
        if free >= left:
            break
        left -= free
        met.append((max(begun, at) - start, ended - max(begun, at)))
        at = ended
    assert whole == pytest.approx(
        at - start + left if work else 0.0, abs=1e-9, rel=1e-9
    )
    if work:
        assert np.allclose(np.ravel(within), np.ravel(met), rtol=1e-9, atol=1e-9)
        assert whole == pytest.approx(work + sum(length for _, length in within))


@given(
    numbers=st.lists(st.integers(0, 400), min_size=1, max_size=20),
    seed=st.integers(0, 9),
)
def test_the_order_of_questions_changes_no_answer(numbers, seed):
    law = Exponential(1.0), Exponential(0.3)
    one, other = strikes(*law, seed=seed), strikes(*law, seed=seed)
    expected = [other.border_s(n) for n in range(401)]
    assert expected == sorted(expected)
    for number in numbers:
        assert one.border_s(number) == expected[number]
        assert one.passed(expected[number]) == number + 1
        assert one.passed(np.nextafter(expected[number], 0)) == number


def test_everybody_is_struck_by_itself():
    laws = Exponential(5.0), Exponential(1.0)
    firsts = [strikes(*laws, "freeze", who).border_s(0) for who in range(2000)]
    assert len(set(firsts)) == 2000
    assert np.mean(firsts) == pytest.approx(5.0, rel=0.08)
    share = [
        sum(e - b for b, e in intervals(strikes(*laws, "stall", w), 50))
        for w in range(50)
    ]
    assert np.mean(share) / 50 == pytest.approx(1.0, rel=0.08)


def test_strikes_without_end_are_a_sentence(monkeypatch):
    monkeypatch.setattr("simfed.ground.strikes._MOST_STRIKES", 1000)
    struck = strikes(Discrete((1e-6,)), Discrete((1e-6,)), "freeze", 3)
    sentence = r"freeze 3 is struck more than 1,000 times by .* s"
    with pytest.raises(RunFailed, match=sentence):
        struck.stretch(0.0, 10.0)


def test_messages_are_lost_and_doubled_as_often_as_they_should():
    messages = Messages(lost=0.2, doubled=0.3, timeout_s=1.0, tries=5)

    def fates():
        return [messages.fate(Streams(1), c, 1, "upload", 0) for c in range(4000)]

    came = fates()
    assert came == fates()
    doubled = np.array([fate.copies == 2 for fate in came])
    lost = np.array([fate.lost for fate in came])
    assert doubled.mean() == pytest.approx(0.3, abs=0.03)
    assert lost[~doubled].mean() == pytest.approx(0.2, abs=0.03)
    # both copies have to be
    assert lost[doubled].mean() == pytest.approx(0.04, abs=0.02)
