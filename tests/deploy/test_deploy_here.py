"""A deployment on this machine: processes, shaped links, and taking it all down."""

import os
import signal
import subprocess
import sys
import time
from ipaddress import IPv4Interface
from pathlib import Path

import deploy_worlds as worlds
import pytest
import yaml

import simfed
from simfed import InputError
from simfed.deploy import shaping
from simfed.deploy.local import deploy
from simfed.deploy.warden import Warden
from simfed.net import Star
from simfed.verify import verify

SLOW = {**worlds.TIMES, "speed": 0.5}
# slow enough for a transfer to take much longer than a busy processor delays its end
NARROW = {"up": "1 Mbps", "down": "1.5 Mbps"}


def shaped_plan(**changes):
    clients = [{"count": 3, "prototype": "small", "device": SLOW, "link": NARROW}]
    plain = {
        "clients": clients,
        "rounds": 8,
        "checkpoint": {"every": 0},
        "compression": {"k": 15_000, "index_code": "fixed"},
    }
    return worlds.scenario(**{**plain, **changes})


def needs_shaping():
    """Why this machine cannot shape, in a sentence.

    It is then said and nothing is tested.
    """
    lacks = shaping.missing([0.5], 0.0)
    if lacks:
        pytest.skip(f"shaped links need {' and '.join(lacks)}")


REFUSED = """
- clients:
  - count: 1001
    prototype: small
    device: {training: 1 ms, compression: 1 ms}
- network: {model: tcp}
  clients:
  - prototype: small
    device: x86-2core-vm
    link: {up: 2 Mbps, down: 8 Mbps, loss: 0.01}
- network: {cells: {home: {wifi: {standard: n}}}}
  clients: [{prototype: small, device: x86-2core-vm, link: {cell: home, mcs: 7}}]
"""
SAID = (
    "clients: got 1001, expected at most 1,000 clients, as each is a process",
    "links that lose packets",
    "radio cells",
)


@pytest.mark.parametrize(
    ("changes", "said"), [*zip(yaml.safe_load(REFUSED), SAID, strict=True)]
)
def test_clients_that_no_machine_can_have_are_refused(changes, said):
    with pytest.raises(InputError, match=said):
        deploy(worlds.scenario(**changes), shaped=True, progress=False)


def test_links_become_token_buckets_and_delays_inside_namespaces():
    star = Star(
        2,
        up_bytes_per_s=[1e6, 2e6],
        down_bytes_per_s=8e6,
        latency_s=0.01,
        receive_bytes_per_s=5e6,
    )
    lines = [" ".join(command) for command in shaping.list_commands(star, "00000a")]
    queues = [line for line in lines if "qdisc" in line]
    assert queues == [
        "tc -n simfed-00000a qdisc add dev s root handle 1: tbf rate 40000000bit burst "
        "2500 limit 500000",
        "tc -n simfed-00000a-0 qdisc add dev eth0 root handle 1: tbf rate 8000000bit "
        "burst 1600 limit 100000",
        "tc -n simfed-00000a-0 qdisc add dev eth0 parent 1:1 handle 10: netem delay "
        "10000us limit 73",
        "tc -n simfed-00000a qdisc add dev c0 root handle 1: tbf rate 64000000bit "
        "burst 4000 limit 800000",
        "tc -n simfed-00000a qdisc add dev c0 parent 1:1 handle 10: netem delay "
        "10000us limit 582",
        "tc -n simfed-00000a-1 qdisc add dev eth0 root handle 1: tbf rate 16000000bit "
        "burst 1600 limit 200000",
        "tc -n simfed-00000a-1 qdisc add dev eth0 parent 1:1 handle 10: netem delay "
        "10000us limit 146",
        "tc -n simfed-00000a qdisc add dev c1 root handle 1: tbf rate 64000000bit "
        "burst 4000 limit 800000",
        "tc -n simfed-00000a qdisc add dev c1 parent 1:1 handle 10: netem delay "
        "10000us limit 582",
    ]
    outside = [line for line in lines if "simfed-" not in line]
    # nothing else of this machine is touched
    assert all("sf00000a" in line for line in outside)


def test_both_ends_of_every_pair_have_addresses_that_no_other_pair_has():
    commands = shaping.list_commands(Star(3, up_bytes_per_s=1e6), "00001f")
    added = [line[line.index("add") + 1] for line in commands if "addr" in line]
    ends = [*map(IPv4Interface, added)]
    assert len({end.ip for end in ends}) == len(ends) == 2 * 4
    assert [one.network for one in ends[::2]] == [other.network for other in ends[1::2]]
    assert len({end.network for end in ends}) == 4


def test_queue_is_as_long_as_its_link_takes_for_it():
    star = Star(1, up_bytes_per_s=1e6, down_bytes_per_s=1e4)
    commands = shaping.list_commands(star, "00000a", queue_s=0.5)
    rooms = [line[line.index("limit") + 1] for line in commands if "tbf" in line]
    assert rooms == ["500000", "32768"]  # of a slow link twenty packets


def test_both_ends_send_with_the_congestion_control_of_the_network_model():
    star = Star(2, up_bytes_per_s=1e6)
    plain = list(shaping.list_commands(star, "00000a"))
    routed = list(shaping.list_commands(star, "00000a", ["congctl", "cubic"]))
    changed = [a for a, b in zip(routed, plain, strict=True) if a != b]
    assert len(changed) == 3  # the server's way to all clients, and each client's to it
    assert all(
        "route" in line and line[-2:] == ["congctl", "cubic"] for line in changed
    )


def test_what_shaping_lacks_is_named(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", "")
    said = r"no root, `ip` \(iproute2\) (and|or) `tc` \(iproute2\)"
    with pytest.raises(InputError, match=said):
        deploy(shaped_plan(), shaped=True, progress=False)


def wait_until(condition):
    until_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def test_warden_undoes_the_last_first_when_its_deployment_is_killed(tmp_path):
    """The process that put things up is killed as hard as it goes."""
    (tmp_path / "group").mkdir()
    script = f"""
import subprocess, sys, time
from simfed.deploy.warden import Warden
warden = Warden()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"],
                         start_new_session=True)
warden.will(f"kill -s KILL -- -{{child.pid}}")
for n in (1, 2):
    warden.will(f"echo {{n}} >> {tmp_path}/undone")
warden.will("rmdir {tmp_path}/group")
print(child.pid, flush=True)
time.sleep(100)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        child = int(process.stdout.readline())
        process.kill()
    undone = tmp_path / "undone"
    alive = ["kill", "-0", str(child)]
    wait_until(lambda: undone.exists() and undone.read_text() == "2\n1\n")
    assert not (tmp_path / "group").exists()
    wait_until(lambda: subprocess.run(alive, check=False).returncode)


def test_warden_without_a_will_ends_at_once():
    warden = Warden()
    warden.close()


@pytest.mark.long
def test_deployment_of_processes_learns_the_bits_of_the_simulation(out):
    plan = worlds.scenario(method="fedavg")
    real = deploy(plan, out, progress=False)
    worlds.assert_same_learning(real, plan)
    assert verify(out) == []


@pytest.mark.long
def test_shaped_links_take_as_long_as_simulated_ones(out):
    needs_shaping()
    real = deploy(shaped_plan(), out, shaped=True, progress=False)
    simulated = simfed.run(shaped_plan(), progress=False)
    for phase in ("downlink_s", "uplink_s"):
        # the quickest one: the others waited for a processor that other tests have as
        # well
        ours, theirs = (run.participations[phase].min() for run in (simulated, real))
        assert ours == pytest.approx(theirs, rel=0.1)
    assert_nothing_is_left()


@pytest.mark.long
def test_quota_is_the_scenarios_own(out, monkeypatch):
    """Its share and its period, not those by which a slow processor is imitated."""
    needs_shaping()
    groups, make = [], shaping.make_group

    def made(group, *how):
        make(group, *how)
        files = (group / name for name in ("cpu.max", "cpu.cfs_quota_us"))
        groups.extend(file.read_text().split()[0] for file in files if file.exists())

    monkeypatch.setattr(shaping, "make_group", made)
    device = {**worlds.TIMES, "quota": {"share": 0.6, "period": "50 ms"}}
    clients = [{"count": 2, "prototype": "small", "device": device, "link": NARROW}]
    deploy(worlds.scenario(clients=clients), out, shaped=True, progress=False)
    assert groups == ["30000", "30000"]
    assert_nothing_is_left()


def test_latency_needs_a_kernel_with_netem(monkeypatch):
    monkeypatch.setattr(shaping.sys, "platform", "linux")
    monkeypatch.setattr(shaping.os, "geteuid", lambda: 0)
    monkeypatch.setattr(shaping.shutil, "which", lambda name: name)
    monkeypatch.setattr(shaping, "_has_queue", lambda queue: queue != shaping._NETEM)
    assert shaping.missing([1.0], 0.0) == []
    [lack] = shaping.missing([1.0], 0.01)
    assert lack.startswith("`netem` queues in this kernel")


@pytest.mark.long
@pytest.mark.parametrize("ends_by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_shaped_deployment(tmp_path, ends_by):
    needs_shaping()
    file = tmp_path / "plan.yaml"
    file.write_text(simfed.scenario.dump_scenario(shaped_plan(rounds=10_000)))
    words = f"deploy {file} --shaped --out {tmp_path}/real --no-figures"
    process = worlds.command(*words.split())
    try:
        worlds.wait_for_line(process, "10,000 rounds")
        time.sleep(12.0)
        assert namespaces()
        process.send_signal(ends_by)
        process.wait(timeout=60)
    finally:
        process.kill()
    assert_nothing_is_left()


def namespaces():
    listed = subprocess.check_output(["ip", "netns", "list"], text=True)
    return [line for line in listed.splitlines() if line.startswith("simfed-")]


def assert_nothing_is_left():
    groups = Path("/sys/fs/cgroup")
    below = "simfed-*", "cpu/simfed-*"
    wait_until(lambda: not namespaces() and not any(map(list, map(groups.glob, below))))
