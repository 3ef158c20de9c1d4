"""Studies of apps, as far as they go without Flower; the rest is in tests/flower."""

import itertools

import pytest
import yaml

from simfed import InputError
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
    made = [run.scenario for run in plan.runs]
    points = [(s.seed, s.app.run_config["times"], s.clients[0].link.up) for s in made]
    assert points == [*itertools.product((3, 4), (1, 5), (125e3, 625e3))]
    assert plan.runs[0].named == "times 1, up 1 Mbps, seed 3"
    plain = plan.kind.dump(made[5])
    assert plan.kind.validate(plain, source="job", folder="/") == made[5]


def test_an_address_follows_the_apps_files_and_the_fleet(study, tmp_path):
    first, package = addresses(study()), tmp_path / "app" / "package"
    assert len(set(first)) == 8
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "code.pyc").write_text("compiled")
    assert addresses(study()) == first
    measured = study(set={**STUDY["set"], "computing": "measured"})
    assert not set(addresses(measured)) & set(first)
    (package / "code.py").write_text("a = 2")
    assert not set(addresses(study())) & set(first)


def test_an_app_is_code_and_runs_by_consent(study):
    with pytest.raises(
        InputError, match="consent to run an app, which is code"
    ) as refused:
        plan_study(study())
    assert "--allow-plugins" in refused.value.hint
