"""The pictures and charts of made-up studies look as kept in `looks.txt`.

See `looks.py`.
"""

from pathlib import Path

import looks
import pytest
import study_fakes as fakes

from simfed.study import draw_study_figure, render_study_page
from simfed.study.target_figure import target_figure

CLIENT = {"count": 2, "prototype": "small", "device": {"profile": "rtx3090-ryzen4800h"}}


@pytest.fixture
def play(write_study, make_up):
    """A function that plays a study of one setting, with this uplink.

    Not all seeds get there.
    """

    def played(name, up, seeds):
        path = write_study(
            base={"clients": [{**CLIENT, "link": {"up": up}}]},
            name=name,
            grid={"policy.strategy": ["top-k", "random-k", "periodic-k"]},
            seeds=seeds,
            compare={"arms": "policy.strategy", "thresholds": [0.5, 0.835]},
        )
        return make_up(path, name)

    return played


def lines(studied, slow, fast):
    for name, study in (("two settings", studied), ("one setting", slow)):
        yield from looks.of_figure(f"{name}: targets", target_figure(study))
        yield from looks.of_figure(
            f"{name}: narrow", target_figure(study, width_in=2.5)
        )
        yield from looks.of_figure(f"{name}: curves", draw_study_figure(study))
        yield from looks.of_page(f"{name}: page", render_study_page(study))
    yield from looks.of_figure("some seeds", target_figure(studied, targets=[0.84]))
    yield from looks.of_figure("energy", target_figure(slow, quantity="energy"))
    yield from looks.of_page("one seed", render_study_page(fast))


@pytest.mark.long
def test_every_picture_and_chart_looks_as_kept(studied, play, monkeypatch):
    monkeypatch.setattr(fakes, "JOULES", 2.0)
    looks_now = lines(
        studied, play("slow", "5 Mbps", [0, 1]), play("fast", "50 Mbps", [0])
    )
    looks.assert_looks(Path(__file__).with_name("looks.txt"), looks_now)
