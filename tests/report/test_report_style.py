"""The phases' colours stay apart for eyes that see fewer colours."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from simfed.report import PHASES, looks
from simfed.report.style import (
    ARM_COLOURS,
    WORK,
    choose_arm_colours,
    choose_arm_shapes,
    phase,
)

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
VISION = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def lab(colour, seen):
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ np.clip(seen @ linear, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distances(pairs, vision="usual"):
    """CIE 1976 ΔE, of which about 2 is just noticeable."""
    seen = VISION[vision]
    return [np.linalg.norm(lab(a, seen) - lab(b, seen)) for a, b in pairs]


@pytest.mark.parametrize("vision", VISION)
def test_colours_differ_for_every_eye(vision):
    every = {**PHASES, **WORK}.values()
    plain = [look.colour for look in every if not look.hatch]
    assert min(distances(itertools.combinations(plain, 2), vision)) > 12
    arms = min(distances(itertools.combinations(ARM_COLOURS, 2), vision))
    assert arms > (25 if vision == "usual" else 12)


def test_what_looks_alike_in_grey_has_a_hatch():
    without_work = {"offline", "dropped", "absent"}
    assert {name for name, phase in PHASES.items() if phase.hatch} == without_work


def test_kinds_of_a_methods_own_have_looks_of_their_own_that_stay():
    names = [f"kind {i}" for i in range(18)]
    together = looks([*names, "training", "logits"])
    assert together["training"] == PHASES["training"]
    assert together["logits"] == WORK["logits"]
    every = (*together.values(), *PHASES.values())
    assert len({(look.colour, look.hatch) for look in every}) == 18 + len(PHASES) + 1
    assert looks(reversed(names)) == {name: together[name] for name in names}
    assert phase("digest") == looks(["digest", "training"])["digest"]


def test_no_strategy_looks_like_a_phase():
    phases = [look.colour for look in PHASES.values()]
    assert min(distances(itertools.product(ARM_COLOURS, phases))) > 25


def test_a_level_is_a_shade_of_its_strategys_colour_and_of_its_mark():
    arms = ("top-k@500", "top-k@5000", "random-k@500", "random-k@5000", "dense")
    colours, marks = choose_arm_colours(arms), choose_arm_shapes(arms)
    assert len(set(colours.values())) == len(set(marks.values())) == 5
    assert [marks[arm][1:] for arm in arms] == [
        ("triangle-up", 1),
        ("triangle-up", 0),
        ("circle", 1),
        ("circle", 0),
        ("diamond", 1),
    ]
    # one level: no shades
    for named in (["top-k@500"], ["top-k"]):
        assert [*choose_arm_colours(named).values()] == [ARM_COLOURS[0]]
