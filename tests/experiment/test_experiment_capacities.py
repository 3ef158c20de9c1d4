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


def played(folder, name, send):
    (folder / "bus.csv").write_text(TRACE)
    scenario = worlds.change(worlds.TINY, {**KEYS, "network.server.send": send})
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(scenario))
    out = folder / name
    assert (
        main(["run", str(folder / f"{name}.yaml"), "--time-only", "--out", str(out)])
        == 0
    )
    return open_run(out)


def test_the_steps_of_a_trace_are_those_that_the_run_saw(tmp_path, capsys):
    run = played(
        tmp_path, "traced", {"file": "bus.csv", "format": "csv", "end": "loop"}
    )
    capacities = capacities_of(run, run.path)
    assert list(capacities) == ["server/send"]
    at_s, rates = map(np.asarray, capacities["server/send"])
    assert (np.diff(at_s) > 0).all()
    assert set(rates) == {40e6 / 8, 8e6 / 8, 20e6 / 8, 3e6 / 8, 30e6 / 8}
    use = run.links[run.links["link"] == "server/send"]
    middle = (use["from_s"] + use["to_s"]) / 2
    now = rates[np.searchsorted(at_s, middle, side="right") - 1]
    assert np.allclose(now, use["capacity_bytes_per_s"])
    # also while it is idle
    assert len(at_s) > use["capacity_bytes_per_s"].diff().ne(0).sum()

    assert (
        main(
            [
                "timeline",
                str(run.path),
                "--out",
                str(tmp_path / "t.svg"),
                "--height",
                "4in",
            ]
        )
        == 0
    )
    assert "server/send" in (tmp_path / "t.svg").read_text()


def test_a_link_that_does_not_vary_has_no_steps(tmp_path, capsys):
    run = played(tmp_path, "still", "40 Mbps")
    assert capacities_of(run, run.path) == {}
    # without the traces, what was recorded has to do
    traced = played(
        tmp_path, "lost", {"file": "bus.csv", "format": "csv", "end": "hold"}
    )
    for file in (traced.path / "network").iterdir():
        file.unlink()
    assert capacities_of(open_run(traced.path), traced.path) == {}
