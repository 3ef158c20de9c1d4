"""Each kind of file with an example of it, and what reads it."""

import contextlib
import json
import shutil
from importlib import import_module

import mutations as fuzz

CASES = json.dumps({
    "name": "two", "links": [{"capacity_bytes_per_s": 1e6, "latency_s": 0.01}],
    "flows": [{"start_s": 0.0, "size_bytes": 1e6, "path": [0], "finish_s": 2.0},
              {"start_s": 0.5, "size_bytes": 5e5, "path": [0]}],
})  # fmt: skip
GML = """graph [ directed 1
  node [ id 0 label "server" Latitude 59.9 Longitude 10.75 ]
  node [ id 1 label "a" Latitude 60.4 Longitude 5.3 ]
  node [ id 2 label "client-0" Latitude 1 Longitude 2 ]
  edge [ source 1 target 0 LinkSpeed "5" LinkSpeedUnits "M" latency "2 ms" ]
  edge [ source 0 target 1 capacity "5 Mbps" ]
  edge [ source 2 target 1 capacity "1 Mbps" ]
  edge [ source 1 target 2 capacity "1 Mbps" ] ]
"""
STUDY = """
name: s
base: scenario.yaml
seeds: [0, 1]
set: {rounds: 3}
grid: {training.learning_rate: [0.01, 0.02], compression.k: {few: 10, many: 1%}}
compare: {arms: compression.k, baseline: few, thresholds: [0.5]}
"""
SCENARIO = """
name: tiny
rounds: 4
dataset: {name: mnist-mini, public: 16, partition: {kind: dirichlet, alpha: 0.3}}
prototypes: {small: {model: lenet5-half}}
clients:
  - count: 2
    prototype: small
    device:
      profile: profile.yaml
      speed: {lognormal: {median: 1, cv: 0.5}}
      noise: {cv: 0.1}
      assume: &codecs {compression: 1 ms, decompression: 1 ms}
    link:
      up: {file: up.csv, format: csv, end: hold}
      down: {uniform: {low: 5 Mbps, high: 9 Mbps}}
    availability: {markov: {on: 2 h, off: 1 min}}
    failure: {upload: 0.01}
  - {count: 2, prototype: small, device: {profile: profile.yaml, assume: *codecs},
     link: {up: 5 Mbps, latency: 10 ms, at: edge},
     availability: {trace: there.csv, devices: drawn}}
training:
  batch_size: 4
  local_steps: 2
  momentum: 0.9
  schedule: {kind: step, every: 2}
compression: {k: 50, strategies: [top-k, {qsgd: {levels: 4}}], k_choices: [1%, 20]}
policy: {kind: ascend, warmup: 1, reward: {rho: 0.5, local_loss: {samples: 16}}}
network:
  topology: tree
  tiers: [{name: edge, up: 50 Mbps}]
  model: tcp
  tcp: {handshake: false}
aggregation:
  mode: deadline
  deadline: 30 s
  late: merge
  staleness: {kind: hinge, after: 1}
participation: {clients_per_round: 3, selection: {kind: oort, decay: 0.9}}
server: {device: {profile: profile.yaml, assume: *codecs}}
downlink: {compression: {k: 10%, strategy: top-k}}
evaluation: {every: 3}
checkpoint: {every: 1}
"""
RUN = """
name: run
rounds: 3
dataset: {name: mnist-mini}
method: fedavg
prototypes: {small: {model: logistic-regression}}
clients:
  - count: 3
    prototype: small
    device: {profile: x86-2core-vm, assume: {training: 1 ms}}
    link: {up: {file: up.csv, format: csv, end: hold}, down: 5 Mbps}
policy: {kind: uniform, strategy: random-k}
compression: {k: 50}
checkpoint: {every: 1}
"""


def corpus(folder):
    """One good example of everything, in this folder."""
    import simfed
    from simfed.record import NAME, Checkpoint, CheckpointFolder, Journal

    folder.mkdir(parents=True, exist_ok=True)
    calibration = fuzz.ROOT / "calibration"
    for name, content in {
        "scenario.yaml": SCENARIO,
        "study.yaml": STUDY,
        "graph.gml": GML,
        "cases.json": CASES,
        "up.csv": "0,5\n1,7.5\n2,0\n3,1e1\n",
        "there.csv": "client,from_s,to_s\n0,0,5\n1,2,9\n",
        "dated.csv": "at,mbps,note\n2019-12-14T08:16:31+01:00,5,a\n"
        "2019-12-14T08:16:31+01:00,6,b\n2019-12-14T08:16:34+01:00,7.5,\n",
        "logged.txt": "1289406399 5496 59.8 100000 1007\n1289406400 6503 59.9 0 998\n",
        "mahimahi.txt": "0\n1\n5\n5\n9\n",
        "pensieve.txt": "0.5 1.2\n1.0 0\n2 3e1\n",
        "devices.csv": "speed,up,w\n1,5,1\n0.5,2,3\n",
        "run.yaml": RUN,
        "graph.graphml": GRAPHML,
    }.items():
        (folder / name).write_text(content)
    shutil.copy(calibration / "x86-2core-vm.yaml", folder / "profile.yaml")
    shutil.copy(
        calibration / "rtx3090-ryzen4800h.training.csv", folder / "measured.csv"
    )
    scenario = simfed.load_scenario(folder / "run.yaml")
    simfed.run(
        scenario,
        folder / "run",
        source=fuzz.ROOT / "scenarios" / "x.yaml",
        time_only=True,
        progress=False,
    )
    begun = folder / "begun" / "checkpoint"
    checkpoints, journal = CheckpointFolder(begun, "id"), Journal(begun.parent / NAME)
    begun.parent.mkdir()
    for round in (1, 2):
        journal.note("", f"answer {round}", [round])
        facts = {"a": {"b": [1, 2.5, "x"]}}
        checkpoints.save(Checkpoint(round, facts, arrays(), journal.flush()))
    cache(folder / "cache")
    return folder


def arrays():
    import numpy as np

    return {"weights": np.arange(6.0), "counts": np.arange(3)}


def cache(folder):
    from simfed.replay import TrajectoryStore

    trajectory = TrajectoryStore(folder).open("key", {"what": "x"})
    trajectory.add("n0", {"losses": [1.0, 2.0]})
    trajectory.add("n1", {"losses": [0.5]})
    trajectory.keep_state("n1", {"a": 1}, arrays())
    trajectory.close()


GRAPHML = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="d0" for="edge" attr.name="LinkSpeed" attr.type="string"/>
<key id="d1" for="edge" attr.name="LinkSpeedUnits" attr.type="string"/>
<key id="d2" for="node" attr.name="Latitude" attr.type="double"/>
<key id="d3" for="node" attr.name="Longitude" attr.type="double"/>
<graph edgedefault="undirected">
<node id="server"><data key="d2">59.9</data><data key="d3">10.75</data></node>
<node id="a"><data key="d2">60.4</data><data key="d3">5.3</data></node>
<edge source="a" target="server"><data key="d0">5</data><data key="d1">M</data></edge>
<edge source="server" target="a"><data key="d0">1</data><data key="d1">M</data></edge>
</graph></graphml>
"""

# ---- readers -------------------------------------------------------------------------


def scenario(path):
    from simfed.experiment import check_parts
    from simfed.scenario import dump_scenario, load_scenario

    loaded = load_scenario(path)
    dump_scenario(loaded)
    if loaded.client_count < 1000:
        check_parts(loaded, path, False)


def calls(function, *more, **options):
    """A reader that hands the path to a function of simfed, `module:name`."""
    module, name = function.split(":")

    def read(path):
        getattr(import_module(f"simfed.{module}"), name)(path, *more, **options)

    return read


study = calls("scenario.study:load_study_file")
profile = calls("device:load_profile")
there = calls("fleet.availability:read_trace")
csv_trace = calls("net.trace_files:read_csv", "loop")
dated_trace = calls(
    "net.trace_files:read_csv", time_column="at", rate_column="mbps", time_unit="date"
)
logged_trace = calls(
    "net.trace_files:read_csv",
    elapsed_column=4,
    bytes_column=3,
    time_unit="ms",
    separator="blanks",
)
mahimahi = calls("net.trace_files:read_mahimahi", "hold")
pensieve = calls("net.trace_files:read_pensieve")


def graph(path):
    from simfed.net import read_graph
    from simfed.net.spec import FileCapacity, FileLatency

    capacity = FileCapacity(
        attribute="LinkSpeed", unit_attribute="LinkSpeedUnits", missing="1 Gbps"
    )
    for latency in (None, FileLatency(by="distance")):
        read_graph(path, capacity, latency)


run = calls("verify.run:verify")
devices = calls("ground.tables:read_columns", ["speed", "up"])
CHOSEN = {"w": ">= 1", "up": [5, 2], "speed": "<= 1"}
chosen = calls("ground.tables:read_columns", ["speed", "up"], CHOSEN)


def measured(path):
    calls("device.table:read_table")([path])


def cases(path):
    from simfed.ground import read_json
    from simfed.net.cases import parse_case

    parse_case(read_json(path))


def checkpoint(path):
    from simfed.record import CheckpointFolder

    CheckpointFolder(path / "checkpoint", "id").load()


def kept(path):
    from simfed.replay import TrajectoryStore

    store = TrajectoryStore(path)
    trajectory = store.open("key", {"what": "x"})
    for node in ("n0", "n1"):
        trajectory.known(node)
        trajectory.state(node)
    assert all("\n" not in sentence for sentence in trajectory.damaged)
    store.kept()
    trajectory.close()


# ---- seals ---------------------------------------------------------------------------


def seal_run(folder):
    from simfed.record import digest_manifest, digest_scenario, fingerprint, open_run

    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["scenario_sha256"] = digest_scenario(
        (folder / "scenario.yaml").read_text()
    )
    with contextlib.suppress(Exception):
        tables = open_run(folder)
        manifest["fingerprint"] = fingerprint(lambda name: [tables.table(name)])
    manifest["digest"] = digest_manifest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def seal_checkpoint(folder):
    from simfed.record import digest_file, digest_value

    for name in ("state.json", "earlier.json"):
        state = json.loads((folder / name).read_text())
        with contextlib.suppress(Exception):
            arrays = folder / state["arrays"]["file"]
            state["arrays"]["digest"] = digest_file(arrays)
        state.pop("digest", None)
        (folder / name).write_text(json.dumps({**state, "digest": digest_value(state)}))


KINDS = {
    # kind: (file or folder of the corpus, its reader, share of all inputs, seal)
    "scenario": ("scenario.yaml", scenario, 0.07, None),
    "study": ("study.yaml", study, 0.185, None),
    "profile": ("profile.yaml", profile, 0.015, None),
    "measured": ("measured.csv", measured, 0.08, None),
    "devices": ("devices.csv", devices, 0.04, None),
    "chosen rows": ("devices.csv", chosen, 0.04, None),
    "there": ("there.csv", there, 0.08, None),
    "csv trace": ("up.csv", csv_trace, 0.05, None),
    "dated trace": ("dated.csv", dated_trace, 0.03, None),
    "logged trace": ("logged.txt", logged_trace, 0.02, None),
    "mahimahi": ("mahimahi.txt", mahimahi, 0.07, None),
    "pensieve": ("pensieve.txt", pensieve, 0.07, None),
    "gml": ("graph.gml", graph, 0.06, None),
    "graphml": ("graph.graphml", graph, 0.06, None),
    "cases": ("cases.json", cases, 0.07, None),
    "run": ("run", run, 0.02, seal_run),
    "checkpoint": ("begun", checkpoint, 0.02, seal_checkpoint),
    "cache": ("cache", kept, 0.02, lambda folder: None),
}
"""What simfed reads."""


def made(kind, number, good, into):
    """The number-th mutation of a kind, in the folder `into`; what to read."""
    name, _, _, seal = KINDS[kind]
    rng, place = fuzz.rng_of(kind, number), into / name
    if seal is None:
        place.write_bytes(
            fuzz.mutated_text(rng, (good / name).read_bytes(), place.suffix)
        )
        return place
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(good / name, place)
    fuzz.mutate_folder(rng, place, seal)
    return place
