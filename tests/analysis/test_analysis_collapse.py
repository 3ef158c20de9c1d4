"""The small world in which networks with batch norm fall to chance."""

import itertools

import collapse
import pytest
import torch
from campaign import STUDIES

import simfed
from simfed.ground.registry import registry


@pytest.fixture(autouse=True, scope="module")
def stacks():
    for name, model in collapse.MODELS.items():
        registry("model").add(name, model)
    yield
    for name in collapse.MODELS:
        registry("model").remove(name)


@pytest.mark.parametrize("setting", collapse.SETTINGS)
def test_a_setting_is_the_sources_scenario_with_stacks(setting):
    changes = {**collapse.WORLD, **collapse.SETTINGS[setting]}
    scenario = simfed.load_scenario(STUDIES / "cifar10.yaml", overrides=changes)
    assert scenario.client_count == 6
    assert {one.model for one in scenario.prototypes.values()} <= {*collapse.MODELS}
    assert scenario.safeguard.rollback is None


@pytest.mark.parametrize("name", collapse.MODELS)
def test_a_stack_ends_at_two_by_two_pixels(name):
    model = collapse.MODELS[name]((3, 32, 32), 10).eval()
    images = torch.zeros(2, 3, 32, 32)
    assert model.layers(images).shape == (2, 64, 2, 2)
    assert model(images).shape == (2, 10)
    assert bool(list(model.buffers())) == model.tracks


def test_what_is_kept_is_every_setting_and_seed():
    rows = collapse.read_rows()
    evaluations = range(collapse.EVERY, collapse.ROUNDS + 1, collapse.EVERY)
    planned = itertools.product(collapse.SETTINGS, collapse.SEEDS, evaluations)
    played = rows[["setting", "seed", "round"]].itertuples(index=False, name=None)
    assert sorted(played) == sorted(planned)
