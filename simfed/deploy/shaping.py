"""Links and processors of a scenario on one machine: namespaces, token buckets, quotas.

    this machine's own namespace           simfed-TAG           simfed-TAG-n
    server ── sfTAG ══ server/send, ══ s  router  cN ══ client-N/down, ══ eth0  client N
                       server/receive                   client-N/up

Each end of a pair of virtual interfaces sends through a token bucket (`tbf`) of the
capacity of that direction, client's pairs also through `netem` with the latency. What
waits for tokens stands in a queue of `QUEUE_S` at the link's rate (`LEAST_QUEUE_BYTES`
at least); what finds no room in it is dropped, as at a router. A quota of processor
time is one (cgroup `cpu`), and a processor slower than the profile's becomes one, of
short periods.

What is not like the scenario: TCP shares the server's link as TCP does, not max-min; a
quota in place of `speed` stops a process and lets it go, where a slow processor is slow
all the time; all processes share caches and memory. Rates that vary, loss, and
topologies other than stars are refused.
"""

from __future__ import annotations

import math
import os
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

from simfed.deploy.warden import Warden
from simfed.experiment.assembly import Parts
from simfed.ground.cores import find_cpu_groups, make_group
from simfed.ground.errors import InputError, listed
from simfed.net import Star, Topology
from simfed.net.topology import Direction
from simfed.schema.distribution import Distribution

QUEUE_S = 0.1
"""A link's queue at its rate: a round trip's worth by the old rule for routers, a tenth
of a second where nobody knows better. With a queue that never drops, whoever sends
first keeps its share."""
LEAST_QUEUE_BYTES = 32_768
_PACKET_BYTES = 1514

MOST_CLIENTS = 1000
"""The most clients of a deployment on one machine."""
_BLOCK = 4096
"""Addresses of one deployment, of 198.18.0.0/15, which is set aside for tests of
networks."""


@dataclass(frozen=True)
class Shaped:
    """The places of server and clients; those of an unshaped deployment by default."""

    server: str = "127.0.0.1"
    """The address at which clients reach it."""
    prefixes: dict[int, list[str]] = field(default_factory=dict)

    def within(self, client: int) -> list[str]:
        """Return what stands before a client's command."""
        return self.prefixes.get(client, [])


def shape(parts: Parts, warden: Warden, queue_s: float = QUEUE_S) -> Shaped:
    """Put up network and groups; `warden` takes them down.

    Args:
        parts: of the scenario: its topology, speeds and quotas.
        warden: is told how to take down each thing before it is put up.
        queue_s: for how long what waits for a link may wait.

    Raises:
        InputError: the topology cannot be shaped, or this machine lacks something.
    """
    topology = _require_star(parts)
    shares = [_find_share(parts, client) for client in range(topology.clients)]
    ways = [
        topology.path(client, way)
        for client in range(topology.clients)
        for way in _WAYS
    ]
    latency_s = max((path.latency_s for path in ways), default=0.0)
    lacks = missing([share for share, _ in shares], latency_s)
    if lacks:
        cure = (
            "without --shaped clients share the loopback and the processor as they are"
        )
        got = f"no {listed(lacks)}"
        raise InputError("what shaped links need", where="--shaped", got=got, hint=cure)
    tag = secrets.token_hex(3)
    for namespace in _list_namespaces(tag, topology.clients):
        warden.will(f"ip netns del {namespace}")
    warden.will(f"ip link del sf{tag}")
    for command in list_commands(topology, tag, _find_cubic(), queue_s):
        _run_command(command)
    prefixes = {
        client: [
            *_limit_speed(tag, client, *share, warden),
            *("ip", "netns", "exec", f"simfed-{tag}-{client}"),
        ]
        for client, share in enumerate(shares)
    }
    return Shaped(str(_choose_ip(tag, 0, 1)), prefixes)


def missing(shares: Sequence[float], latency_s: float) -> list[str]:
    """Return what this machine lacks for shaped links, in words.

    Args:
        shares: of a processor, one per client.
        latency_s: the longest of a link.
    """
    if sys.platform != "linux":
        return ["Linux"]
    lacks = [] if os.geteuid() == 0 else ["root"]
    lacks += [
        (f"`{name}` (iproute2)") for name in ("ip", "tc") if shutil.which(name) is None
    ]
    if lacks:
        return lacks
    works = _has_queue(_BUCKET)
    if works is None:
        return ["network namespaces"]
    if not works:
        lacks.append("`tbf` queues in this kernel (module sch_tbf)")
    if latency_s > 0 and not _has_queue(_NETEM):
        lacks.append(
            "`netem` queues in this kernel (module sch_netem), which links with "
            "latency need"
        )
    if min(shares, default=1.0) < 1.0 and find_cpu_groups() is None:
        lacks.append("cgroup with the `cpu` controller that can be written")
    return lacks


_WAYS: tuple[Direction, Direction] = ("up", "down")
_BUCKET, _NETEM = "tbf rate 1mbit burst 1600 latency 1s", "netem"


def _has_queue(queue: str) -> bool | None:
    """Return whether this kernel has such queues.

    None: it has no namespaces to try one in.
    """
    probe = f"simfed-probe-{secrets.token_hex(3)}"
    if not _can_run(f"ip netns add {probe}".split()):
        return None
    try:
        return _can_run(f"tc -n {probe} qdisc replace dev lo root {queue}".split())
    finally:
        _can_run(f"ip netns del {probe}".split())


def list_commands(
    topology: Topology,
    tag: str,
    route: Sequence[str] = (),
    queue_s: float = QUEUE_S,
) -> Iterator[list[str]]:
    """Return all that puts up the network, in order.

    Everything is inside namespaces of this tag, but for the server's end of one pair of
    interfaces and the route through it.

    Args:
        topology: a star.
        tag: six hexadecimal digits, which choose names and addresses.
        route: options of the routes between server and clients, both ways.
        queue_s: as for `shape`.
    """
    router, outside = f"simfed-{tag}", f"sf{tag}"
    options = " ".join(route)
    send, receive = _find_server_rates(topology)
    yield from _split_lines(f"""
        ip netns add {router}
        ip -n {router} link set lo up
        ip netns exec {router} sh -c "echo 1 > /proc/sys/net/ipv4/ip_forward"
        ip link add {outside} type veth peer name s netns {router}
        ip addr add {_choose_ip(tag, 0, 1)}/30 dev {outside}
        ip link set {outside} up
        ip -n {router} addr add {_choose_ip(tag, 0, 2)}/30 dev s
        ip -n {router} link set s up
        ip route add {_choose_ip(tag, 0, 0)}/20 via {_choose_ip(tag, 0, 2)} \
dev {outside} {options}
    """)
    yield from _list_queue_commands("tc", outside, send, 0.0, queue_s)
    yield from _list_queue_commands(f"tc -n {router}", "s", receive, 0.0, queue_s)
    for client in range(topology.clients):
        inside, pair = f"simfed-{tag}-{client}", f"c{client}"
        near, far = _choose_ip(tag, client + 1, 1), _choose_ip(tag, client + 1, 2)
        up, down = (topology.path(client, way) for way in _WAYS)
        rates = topology.capacities_bytes_per_s[2 * client : 2 * client + 2].tolist()
        yield from _split_lines(f"""
            ip netns add {inside}
            ip -n {inside} link set lo up
            ip -n {router} link add {pair} type veth peer name eth0 netns {inside}
            ip -n {router} addr add {near}/30 dev {pair}
            ip -n {router} link set {pair} up
            ip -n {inside} addr add {far}/30 dev eth0
            ip -n {inside} link set eth0 up
            ip -n {inside} route add default via {near} {options}
        """)
        up_s, down_s = (path.latency_s for path in (up, down))
        yield from _list_queue_commands(
            f"tc -n {inside}", "eth0", rates[0], up_s, queue_s
        )
        yield from _list_queue_commands(
            f"tc -n {router}", pair, rates[1], down_s, queue_s
        )


def _split_lines(lines: str) -> Iterator[list[str]]:
    """Yield the words of each line, as a shell splits them."""
    for line in lines.strip().splitlines():
        yield shlex.split(line)


def _list_queue_commands(
    tc: str, device: str, rate: float, latency_s: float, queue_s: float
) -> Iterator[list[str]]:
    """Yield what gives an interface a rate and a latency.

    Args:
        tc: the command, with its namespace.
        device: the interface.
        rate: bytes per second; infinite: no bucket.
        latency_s: 0: no `netem`.
        queue_s: as for `shape`.
    """
    parent, packets = "root", 100_000
    if math.isfinite(rate):
        room = max(round(rate * queue_s), LEAST_QUEUE_BYTES)
        # what is on its way stands in the same queue
        packets = math.ceil((room + rate * latency_s) / _PACKET_BYTES)
        # more would let small messages through unshaped
        burst = max(1600, round(rate * 5e-4))
        bucket = f"rate {round(8 * rate)}bit burst {burst} limit {room}"
        yield f"{tc} qdisc add dev {device} root handle 1: tbf {bucket}".split()
        parent = "parent 1:1"
    if latency_s > 0:
        delay = f"delay {latency_s * 1e6:.0f}us limit {packets}"
        yield f"{tc} qdisc add dev {device} {parent} handle 10: netem {delay}".split()


def _require_star(parts: Parts) -> Topology:
    """Return the scenario's topology.

    Raises:
        InputError: it is no star of constant links.
    """
    topology = parts.topology
    wrong = None
    if not isinstance(topology, Star):
        wrong = "another topology than a star"
    elif topology.cells:
        wrong = "radio cells"
    elif topology.traces:
        wrong = "links whose rates vary"
    elif topology.delays is not None:
        wrong = "latencies that differ from message to message"
    elif any(topology.path(client, "up").loss for client in range(topology.clients)):
        wrong = "links that lose packets"
    elif topology.clients > MOST_CLIENTS:
        wrong = f"{topology.clients} clients"
    if wrong is not None:
        allowed = (
            f"a star of at most {MOST_CLIENTS} clients with constant links for --shaped"
        )
        raise InputError(allowed, where="network", got=wrong)
    return topology


def _find_server_rates(topology: Topology) -> tuple[float, float]:
    """Return bytes per second that the server sends, and receives."""
    rates = {
        line.name: float(topology.capacities_bytes_per_s[2 * topology.clients + i])
        for i, line in enumerate(topology.lines)
    }
    return rates["server/send"], rates["server/receive"]


def _find_share(parts: Parts, client: int) -> tuple[float, float | None]:
    """Return (share of a processor, of so many seconds) of its quota.

    Where it has none, its speed, of periods as short as can be.
    """
    device = parts.group(client).device
    if device.quota is not None:
        return device.quota.share, device.quota.period
    speed = device.speed
    return (
        parts.fleet.speed(client) if isinstance(speed, Distribution) else float(speed)
    ), None


def _list_namespaces(tag: str, clients: int) -> Iterator[str]:
    yield f"simfed-{tag}"
    for client in range(clients):
        yield f"simfed-{tag}-{client}"


def _choose_ip(tag: str, pair: int, end: int) -> IPv4Address:
    """Return an address of a pair of interfaces.

    Args:
        tag: of the deployment, which has a block of addresses.
        pair: 0: the server's; n + 1: client n's.
        end: 1 or 2 of the pair; 0: its network.
    """
    block = int(tag, 16) % 32
    return IPv4Address("198.18.0.0") + block * _BLOCK + 4 * pair + end


def _find_cubic() -> list[str]:
    """Return the arguments that choose CUBIC, where this kernel has it.

    Nearly every Linux sends so, and the network model; with BBR, say, short messages
    share a link in another way.
    """
    choices = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
    has_cubic = choices.exists() and "cubic" in choices.read_text().split()
    return ["congctl", "cubic"] if has_cubic else []


def _limit_speed(
    tag: str, client: int, share: float, period_s: float | None, warden: Warden
) -> list[str]:
    """Return a command before a client's that puts it into a group with its share.

    Args:
        tag: of the deployment.
        client: its number.
        share: of a processor; 1 or more: no group.
        period_s: of the quota; None: as short as can be.
        warden: is told to remove the group.
    """
    if share >= 1.0:
        return []
    above = find_cpu_groups()
    assert above is not None
    group = above / f"simfed-{tag}-{client}"
    # which works once its last process is gone
    warden.will(f"until rmdir {group} || [ ! -e {group} ]; do sleep 0.05; done")
    make_group(group, share, "--shaped", period_s)
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]


def _run_command(command: Sequence[str]) -> None:
    """Run a command.

    Raises:
        InputError: it failed, with what it has printed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = done.stderr.strip()[:300]
        raise InputError(f"`{' '.join(command)}` to work", where="--shaped", got=words)


def _can_run(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
