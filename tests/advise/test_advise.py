"""Advice in tiny worlds, where who wins is known by hand or by a whole study."""

import pytest
import study_fakes as fakes
import worlds
import yaml

import simfed
import simfed.study.drive
from simfed.advise import advise, advise_by_clock
from simfed.study import StudyResult

FEW = {"dense": "dense", "Top-K 1 %": "top-k@1%"}
"""Codecs that race."""


def write(folder, *ups, **changes):
    """The file of a world with two clients for each uplink."""
    group = {"count": 2, "prototype": "a", "device": worlds.DEVICE}
    changed = {
        "clients": [{**group, "link": {"up": up}} for up in ups],
        "training.learning_rate": 0.1,
        "evaluation.every": 1,
        "policy.strategy": "dense",
        **changes,
    }
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(worlds.change(worlds.TINY, changed)))
    return file


def use_few(patch, folder, place=fakes.Inline):
    """Few candidates race, under one seed, in this process, and learn anew."""
    patch.setattr(simfed.study.drive, "RunProcesses", place)
    patch.setattr("simfed.advise.candidates.CODECS", FEW)
    patch.setattr("simfed.advise.race.CODECS", FEW)
    patch.setattr("simfed.advise.candidates.ADAPTIVE", ())
    patch.setattr("simfed.advise.race._MOST_SEEDS", 1)
    patch.setenv("SIMFED_CACHE", str(folder / "cache"))


@pytest.fixture(scope="module")
def raced(tmp_path_factory):
    """A race on a slow and a fast uplink that was interrupted once.

    Its file, its advice, and the addresses of all runs that were begun.
    """
    folder = tmp_path_factory.mktemp("race")
    file = write(folder, "50 kbps", "1 Gbps", rounds=6, method="fedprox")
    begun = []

    class Stopped(fakes.Inline):
        def submit(self, function, job):
            begun.append(job.address)
            if len(begun) == 5:
                raise KeyboardInterrupt
            return super().submit(function, job)

    with pytest.MonkeyPatch.context() as patch:
        use_few(patch, folder, Stopped)

        def again():
            return advise(file, target="40%", budget_s=1000, out=folder / "runs")

        with pytest.raises(simfed.Interrupted, match="the same command goes on"):
            again()
        found = again()
    return file, found, begun


def test_an_interrupted_race_goes_on_and_plays_no_run_twice(raced):
    _, _, begun = raced
    assert begun.pop(4) in begun  # the run that was cut off
    assert len(begun) == len({*begun})


def test_the_choice_is_the_first_of_a_whole_study(raced):
    file, found, _ = raced
    spent = found.result.targets("time", [0.4]).set_index("arm")["median"]
    assert {"dense", "Top-K 1 %", "Top-K 1 % | dense"} == {*spent.index}
    assert spent.idxmin() == found.candidate.name
    study = {
        "name": "all",
        "base": "mine.yaml",
        "list": CHOICES,
        "compare": {"arms": "list", "thresholds": [0.4]},
    }
    path = file.with_name("all.yaml")
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simfed.study.drive, "RunProcesses", fakes.Inline)
        out = file.with_name("all")
        whole = simfed.run_study(path, out, progress=False)
    best = whole.targets("time").set_index("arm")["median"]
    assert best.idxmin() == found.candidate.name
    assert best.min() == spent.min()


def uniform(strategy):
    return {"kind": "uniform", "strategy": strategy}


CHOICES = {
    "dense": {"policy": uniform("dense")},
    "Top-K 1 %": {"policy": uniform("top-k@1%")},
    "Top-K 1 % | dense": {"clients[0].policy": uniform("top-k@1%")},
    "dense | Top-K 1 %": {"clients[1].policy": uniform("top-k@1%")},
}


def test_the_advice_is_written_as_a_scenario_that_is_valid_elsewhere(raced, tmp_path):
    _, found, _ = raced
    path = tmp_path / "advised.yaml"
    found.write(path)
    assert simfed.load_scenario(path) == found.scenario
    simfed.check(found.scenario, source=path)
    first, *_ = path.read_text().splitlines()
    assert first == f"# {str(found).splitlines()[0]}"


@pytest.mark.parametrize(
    ("ups", "advised", "momentum"),
    [
        # 31.4 kB beside 50 ms take twice as long at 2.5 Mbps
        (["2.6 Mbps"], ["8 bit"], True),
        (["2.4 Mbps"], ["DGC 1 %"], False),
        # what waits for another has a longer rest of its round
        (["1 Gbps", "1 Mbps"], ["8 bit", "DGC 1 %"], False),
    ],
)
def test_quick_goes_by_dense_upload_seconds_over_the_rest(
    tmp_path, ups, advised, momentum
):
    found = advise_by_clock(write(tmp_path, *ups, **{"training.local_steps": 1}))
    assert (found.candidate.codecs, found.candidate.momentum) == (advised, momentum)


def test_quick_takes_top_k_where_a_profile_knows_no_other(tmp_path):
    changes = {
        "clients[0].device": "x86-2core-vm",
        "prototypes.a.model": "lenet5",
        "training.local_steps": 1,
    }
    file = write(tmp_path, "1 Mbps", **changes)
    found = advise_by_clock(file)
    assert found.candidate.codecs == ["Top-K 3 %"]
    assert "not DGC 1 %: " in str(found)


def test_a_race_too_short_or_in_which_nobody_learns_is_said(tmp_path, monkeypatch):
    use_few(monkeypatch, tmp_path)
    slow = {"training.learning_rate": 1e-9}
    file = write(tmp_path, "1 Mbps", rounds=1, method="fedprox", **slow)
    with pytest.raises(
        simfed.InputError, match=r"--budget: got '0\.01 s', expected en"
    ):
        advise(file, out=tmp_path / "short", budget_s=0.01)
    with pytest.raises(simfed.RunFailed, match="better than guessing"):
        advise(file, out=tmp_path / "runs")


def test_a_race_goes_on_while_nobody_is_better_than_guessing(tmp_path, monkeypatch):
    def thresholds(result):
        rounds = [entry["rounds"] for entry in result.plan["runs"]]
        return [0.2] if max(rounds) == 4 else []

    use_few(monkeypatch, tmp_path)
    monkeypatch.setattr(StudyResult, "thresholds", property(thresholds))
    monkeypatch.setattr("simfed.advise.race._FIRST", 1e-9)  # a round each at first
    file = write(tmp_path, "1 Mbps", rounds=4, method="fedprox")
    found = advise(file, budget_s=1000, out=tmp_path / "runs")
    assert found.reasons[0].startswith("to 20 %, after 1 seed")
