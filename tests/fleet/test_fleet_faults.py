"""When strikes come and what they do to work, against plain lists of intervals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from simfed import RunFailed
from simfed.fleet import FaultsSpec, Messages, Rhythm
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
    plain = intervals(struck, 800)
    whole, within = struck.stretch(start, work)
    free = left = work
    at = start
    met = []
    for begun, ended in plain:
        if ended <= at or left <= 0:
            continue
        free = max(begun - at, 0.0)
        if free >= left:
            break
        left -= free
        met.append((max(begun, at) - start, ended - max(begun, at)))
        at = ended
    expected = (at - start) + left if work > 0 else 0.0
    assert whole == pytest.approx(expected, rel=1e-9, abs=1e-9)
    if work > 0:
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
    assert len({strikes(*laws, "freeze", who).border_s(0) for who in range(100)}) == 100
    firsts = [strikes(*laws, "freeze", who).border_s(0) for who in range(2000)]
    assert np.mean(firsts) == pytest.approx(5.0, rel=0.08)
    share = [
        sum(e - b for b, e in intervals(strikes(*laws, "stall", w), 50))
        for w in range(50)
    ]
    assert np.mean(share) / 50 == pytest.approx(1.0, rel=0.08)


def test_strikes_without_end_are_a_sentence(monkeypatch):
    monkeypatch.setattr("simfed.ground.strikes._MOST_STRIKES", 1000)
    struck = strikes(Discrete((1e-6,)), Discrete((1e-6,)), "freeze", 3)
    with pytest.raises(
        RunFailed,
        match=r"freeze 3 is struck more than 1,000 times by "
        r".* s",
    ):
        struck.stretch(0.0, 10.0)


def test_messages_are_lost_and_doubled_as_often_as_they_should():
    messages, streams = (
        Messages(lost=0.2, doubled=0.3, timeout_s=1.0, tries=5),
        Streams(1),
    )
    fates = [messages.fate(streams, client, 1, "upload", 0) for client in range(4000)]
    doubled = np.array([fate.copies == 2 for fate in fates])
    lost = np.array([fate.lost for fate in fates])
    assert doubled.mean() == pytest.approx(0.3, abs=0.03)
    assert lost[~doubled].mean() == pytest.approx(0.2, abs=0.03)
    # both copies have to be
    assert lost[doubled].mean() == pytest.approx(0.04, abs=0.02)
    assert fates == [
        messages.fate(streams, client, 1, "upload", 0) for client in range(4000)
    ]


def test_times_of_faults_follow_a_law_and_never_a_column():
    def faults(between):
        return FaultsSpec.model_validate(
            {"freezes": {"between": between, "lasts": "1 s"}}
        )

    law = {"lognormal": {"median": "10 s", "cv": 1}}
    assert faults(law).freezes.between.lognormal.cv == 1
    with pytest.raises(ValidationError, match="a law, as every time is drawn anew"):
        faults({"column": "gap", "table": "gaps.csv", "unit": "s"})
