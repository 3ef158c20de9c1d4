"""How a link's capacity steps, worked out from a finished run's directory."""

import numpy as np
import worlds
import yaml

from simfed.cli import main
from simfed.experiment.capacities import capacities_of
from simfed.record import open_run

TRACE = "time_s,mbps\n0,40\n0.02,8\n0.05,20\n0.09,3\n0.12,30\n"
KEYS = {
    "rounds": 6,
    "prototypes.a.model": "lenet5-half",
    "clients[0].link.down": "300 Mbps",
}


TRACED = {"file": "bus.csv", "format": "csv", "end": "loop"}


def play(folder, send):
    (folder / "bus.csv").write_text(TRACE)
    scenario = worlds.change(worlds.TINY, {**KEYS, "network.server.send": send})
    (folder / "s.yaml").write_text(yaml.safe_dump(scenario))
    words = f"run {folder}/s.yaml --time-only --no-figures --out {folder}/run"
    assert main(words.split()) == 0
    return open_run(folder / "run")


def test_steps_of_a_trace_are_those_that_the_run_saw(tmp_path):
    run = play(tmp_path, TRACED)
    capacities = capacities_of(run, run.path)
    assert list(capacities) == ["server/send"]
    at_s, rates = map(np.asarray, capacities["server/send"])
    assert (np.diff(at_s) > 0).all()
    assert {*rates} == {mbps * 1e6 / 8 for mbps in (40, 8, 20, 3, 30)}
    use = run.links[run.links["link"] == "server/send"]
    middle_s = (use["from_s"] + use["to_s"]) / 2
    now = rates[np.searchsorted(at_s, middle_s, side="right") - 1]
    assert np.allclose(now, use["capacity_bytes_per_s"])
    # also while it is idle
    assert len(at_s) > use["capacity_bytes_per_s"].diff().ne(0).sum()
    picture = tmp_path / "t.svg"
    assert main(f"timeline {run.path} --out {picture} --height 4in".split()) == 0
    assert "server/send" in picture.read_text()
    # without the traces, what was recorded has to do
    for file in (run.path / "network").iterdir():
        file.unlink()
    assert capacities_of(open_run(run.path), run.path) == {}


def test_link_that_does_not_vary_has_no_steps(tmp_path):
    run = play(tmp_path, "40 Mbps")
    assert capacities_of(run, run.path) == {}
