"""Studies of apps, as far as they go without Flower; the rest is in tests/flower."""

from __future__ import annotations

import pytest
import yaml

from simfed import InputError, InputErrors
from simfed.study import compute_addresses, plan_study
from simfed.study.address import collect_app_facts

FLEET = """
name: tiny
clients: [{count: 2, device: x86-2core-vm, link: {up: 1 Mbps}}]
"""
STUDY = yaml.safe_load("""
name: tiny
base: fleet.yaml
seeds: [3, 4]
set: {app: {folder: app, run_config: {times: 2}}}
grid:
  app.run_config.times: [1, 5]
  clients[*].link.up: [1 Mbps, 5 Mbps]
""")


@pytest.fixture
def study(tmp_path):
    (tmp_path / "app" / "package").mkdir(parents=True)
    (tmp_path / "app" / "pyproject.toml").write_text("")
    (tmp_path / "app" / "package" / "code.py").write_text("a = 1")
    (tmp_path / "fleet.yaml").write_text(FLEET)

    def write(**changed):
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump({**STUDY, **changed}))
        return path

    return write


def addresses(path):
    plan = plan_study(path, allow_plugins=True)
    return [
        at
        for setting in plan.settings
        for at in compute_addresses(
            collect_app_facts(setting.scenario, source=path), plan.seeds
        )
    ]


def test_axes_name_keys_of_the_fleet_and_of_the_apps_configuration(study):
    plan = plan_study(study(), allow_plugins=True)
    pairs = [
        (r.scenario.app.run_config["times"], r.scenario.clients[0].link.up)
        for r in plan.runs
    ]
    assert pairs == [(1, 125e3), (1, 625e3), (5, 125e3), (5, 625e3)] * 2
    assert [run.scenario.seed for run in plan.runs] == [3] * 4 + [4] * 4
    assert plan.runs[0].named == "times 1, up 1 Mbps, seed 3"
    again = plan.kind.validate(
        plan.kind.dump(plan.runs[5].scenario), source="job", folder="/"
    )
    assert again == plan.runs[5].scenario


def test_an_address_follows_the_apps_files_and_the_fleet(study, tmp_path):
    first = addresses(study())
    assert len(set(first)) == 8
    (tmp_path / "app" / "package" / "__pycache__").mkdir()
    (tmp_path / "app" / "package" / "__pycache__" / "code.pyc").write_text("compiled")
    assert addresses(study()) == first
    (tmp_path / "app" / "package" / "code.py").write_text("a = 2")
    assert not set(addresses(study())) & set(first)
    (tmp_path / "app" / "package" / "code.py").write_text("a = 1")
    assert not set(
        addresses(study(set={**STUDY["set"], "computing": "measured"}))
    ) & set(first)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"set": {}, "grid": {"seed": [1]}},
            "grid.seed: seeds stand under the study's own key seeds",
        ),
        (
            {"set": {}, "grid": {"clients[*].link.up": ["1 Mbps"]}},
            (
                "app: the fleet of a study has no app, expected one (in the study: "
                "set: {app: FOLDER})"
            ),
        ),
        (
            {"set": {"app": {"folder": "nowhere"}}},
            "nowhere', expected the folder of a Flower app, with its pyproject.toml",
        ),
        ({"set": {"app": "app", "rounds": 3}}, "there is no key"),
        ({"grid": {"app.run_config.times": [[1], [2]]}}, "app.run_config.times"),
    ],
)
def test_what_is_wrong_is_said(study, changed, sentence):
    with pytest.raises((InputError, InputErrors)) as refused:
        plan_study(study(**changed), allow_plugins=True)
    assert sentence in str(refused.value)


def test_an_app_is_code_and_runs_by_consent(study):
    with pytest.raises(
        InputError, match="consent to run an app, which is code"
    ) as refused:
        plan_study(study())
    assert "--allow-plugins" in refused.value.hint
