"""Two studies held against each other. Runs are made up."""

import pytest
import study_fakes as fakes

from simfed.cli import main
from simfed.ground.errors import InputError
from simfed.study import run_study
from simfed.study.versus import match_studies, render_versus_page

pytestmark = pytest.mark.usefixtures("fake_runs")

SLOW_S, FAST_S = 0.1 + 6000 / 625e3, 0.1 + 6000 / 6.25e6


@pytest.fixture
def ran(write_study, tmp_path):
    """A function that plays a study of this name with this uplink."""

    def play(name, up, grid):
        client = {"count": 2, "prototype": "small", "device": {"profile": "rtx3090-ryzen4800h"}}
        path = write_study(
            base={"clients": [{**client, "link": {"up": up}}]},
            name=name,
            grid=grid,
            seeds=[0, 1, 2],
            compare={"arms": "policy.strategy", "thresholds": [0.5]},
        )
        return run_study(
            path, tmp_path / name, executor=fakes.Inline(), progress=False, trajectories=False
        )

    return play


@pytest.fixture
def two(ran):
    slow = ran("slow", "5 Mbps", grid={"policy.strategy": ["top-k", "random-k"]})
    arms = ["random-k", "top-k", "periodic-k"]
    return slow, ran("fast", "50 Mbps", grid={"policy.strategy": arms})


def test_what_both_have_is_compared_seed_by_seed(two):
    shared = list(match_studies(*two))
    assert [(match.setting, match.arm) for match in shared] == [("", "top-k"), ("", "random-k")]
    for match in shared:
        ((threshold, first, second, paired, gap, _),) = match.comparison.pairs
        assert (threshold, first, second) == (0.5, "slow", "fast")
        assert (paired.wins, paired.losses, paired.seeds) == (0, 3, 3)
        assert paired.ratio.least == pytest.approx(FAST_S / SLOW_S)
        assert paired.verdict == -1
        assert gap.least == 0
        assert not match.is_same


def test_the_page_leads_with_the_times_and_folds_what_is_the_same(two):
    page = render_versus_page(*two)
    assert page.index("Time to target, and final accuracy in points") < page.index("Settings that")
    assert f"fast {SLOW_S / FAST_S:.2f}× " in page
    assert "+0.0 points" in page
    assert "undecided" not in page
    assert "clients[0].link.up" in page
    assert "periodic-k" not in page.partition("Settings that")[0]  # only one of them has it
    again = render_versus_page(two[0], two[0])
    assert "2 more, the same in all" in again


def test_as_typed(two, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [str(study.path) for study in two]
    assert main(["study", "report", *folders]) == 0
    assert capsys.readouterr().out == "report.html: written\n"
    assert main(["study", "report", *folders, "--out", "a.png"]) == 2
    assert (
        "--out: got 'a.png', expected a file that ends in .html for two studies"
        in capsys.readouterr().err
    )
    assert main(["study", "report", *folders, folders[0]]) == 2
    assert "DIR: got '3', expected one study, or two to compare\n" in capsys.readouterr().err
    assert main(["report", folders[0]]) == 2
    assert "this is a study: simfed study report" in capsys.readouterr().err


def test_without_anything_in_common_it_says_so(two, ran):
    other = ran("other", "5 Mbps", grid={"policy.strategy": ["periodic-k"]})
    with pytest.raises(InputError, match="a setting, arm and finished seed in common"):
        render_versus_page(two[0], other)
