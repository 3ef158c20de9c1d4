"""Links and processors of a scenario on one machine: namespaces, token buckets, quotas.

    this machine's own namespace                 simfed-TAG            simfed-TAG-n
    server ── sfTAG ═══════ server/send, ══════ s  router  cN ═══ client-N/down, ═══ eth0  client N
                            server/receive                        client-N/up

Each end of a pair of virtual interfaces sends through a token bucket (`tbf`) of the capacity of
that direction, client's pairs also through `netem` with the latency. What waits for tokens stands
in a queue of `QUEUE_S` at the link's rate (`LEAST_QUEUE_BYTES` at least); what finds no room in it
is dropped, as at a router. A processor slower than the profile's becomes a quota of processor time
(cgroup `cpu`).

What is not like the scenario: TCP shares the server's link as TCP does, not max-min; a quota stops
a process and lets it go, where a slow processor is slow all the time; all processes share caches
and memory. Rates that vary, loss, and topologies other than stars are refused.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

from simfed.assembly import Parts
from simfed.cores import cpu_groups, make_group
from simfed.deploy.warden import Warden
from simfed.errors import InputError, listed
from simfed.net import Star, Topology
from simfed.net.topology import Direction
from simfed.scenario.distribution import Distribution

__all__ = ["QUEUE_S", "Shaped", "commands", "missing", "shape"]

QUEUE_S = 0.1
"""A link's queue at its rate: a round trip's worth by the old rule for routers, a tenth of a second
where nobody knows better. With a queue that never drops, whoever sends first keeps its share."""
LEAST_QUEUE_BYTES = 32_768
_PACKET_BYTES = 1514

_MOST = 1000
_BLOCK = 4096
"""Addresses of one deployment, of 198.18.0.0/15, which is set aside for tests of networks."""


@dataclass(frozen=True)
class Shaped:
    """Where server and clients are."""

    server: str = "127.0.0.1"
    """The address at which clients reach it."""
    prefixes: dict[int, list[str]] = field(default_factory=dict)

    def within(self, client: int) -> list[str]:
        """What a client's command is preceded by."""
        return self.prefixes.get(client, [])


def shape(parts: Parts, warden: Warden, queue_s: float = QUEUE_S) -> Shaped:
    """Put it all up; `warden` takes it down. queue_s: for how long what waits for a link may wait.
    Raises: `InputError` with all that is missing."""
    topology = _star(parts)
    speeds = [_speed(parts, client) for client in range(topology.clients)]
    lacks = missing(topology, speeds)
    if lacks:
        raise InputError(
            "what shaped links need", where="--shaped", got=f"no {listed(lacks)}",
            hint="without --shaped clients share the loopback and the processor as they are",
        )  # fmt: skip
    tag = secrets.token_hex(3)
    for namespace in _namespaces(tag, topology.clients):
        warden.will(run=["ip", "netns", "del", namespace])
    warden.will(run=["ip", "link", "del", f"sf{tag}"])
    for command in commands(topology, tag, _cubic(), queue_s):
        _run(command)
    prefixes = {
        client: [
            *_limited(tag, client, speed, warden),
            *("ip", "netns", "exec", f"simfed-{tag}-{client}"),
        ]
        for client, speed in enumerate(speeds)
    }
    return Shaped(str(_address(tag, 0, 1)), prefixes)


def missing(topology: Topology, speeds: Sequence[float]) -> list[str]:
    """What this machine lacks for that, in words."""
    if sys.platform != "linux":
        return ["Linux"]
    found = []
    if os.geteuid() != 0:
        found.append("root")
    found += [f"`{name}` (iproute2)" for name in ("ip", "tc") if shutil.which(name) is None]
    if found:
        return found
    delayed = any(
        topology.path(client, way).latency_s > 0
        for client in range(topology.clients)
        for way in _WAYS
    )
    probe = f"simfed-probe-{secrets.token_hex(3)}"
    try:
        _run(["ip", "netns", "add", probe])
    except InputError:
        return ["network namespaces"]
    try:
        queue = ["tc", "-n", probe, "qdisc", "replace", "dev", "lo", "root"]
        for kind, needed, options in (
            ("tbf", True, ["rate", "1mbit", "burst", "1600", "latency", "1s"]),
            ("netem", delayed, []),
        ):
            if needed and not _works([*queue, kind, *options]):
                found.append(f"`{kind}` queues in this kernel (module sch_{kind})")
    finally:
        _works(["ip", "netns", "del", probe])
    if min(speeds, default=1.0) < 1.0 and cpu_groups() is None:
        found.append("cgroup with the `cpu` controller that can be written")
    return found


_WAYS: tuple[Direction, Direction] = ("up", "down")


def commands(
    topology: Topology, tag: str, route: Sequence[str] = (), queue_s: float = QUEUE_S
) -> Iterator[list[str]]:
    """All that puts up the network, in order; everything is inside namespaces of this tag, but for
    the server's end of one pair of interfaces and the route through it. `route`: options of the
    routes between server and clients, both ways."""
    router, outside = f"simfed-{tag}", f"sf{tag}"
    send, receive = _server_rates(topology)
    yield ["ip", "netns", "add", router]
    yield ["ip", "-n", router, "link", "set", "lo", "up"]
    yield ["ip", "netns", "exec", router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]
    yield ["ip", "link", "add", outside, "type", "veth", "peer", "name", "s", "netns", router]
    yield ["ip", "addr", "add", f"{_address(tag, 0, 1)}/30", "dev", outside]
    yield ["ip", "link", "set", outside, "up"]
    yield ["ip", "-n", router, "addr", "add", f"{_address(tag, 0, 2)}/30", "dev", "s"]
    yield ["ip", "-n", router, "link", "set", "s", "up"]
    through = ["via", str(_address(tag, 0, 2)), "dev", outside]
    yield ["ip", "route", "add", f"{_address(tag, 0, 0)}/20", *through, *route]
    yield from _queue(["tc"], outside, send, 0.0, queue_s)
    yield from _queue(["tc", "-n", router], "s", receive, 0.0, queue_s)
    for client in range(topology.clients):
        inside, pair = f"simfed-{tag}-{client}", f"c{client}"
        near, far = _address(tag, client + 1, 1), _address(tag, client + 1, 2)
        up, down = (topology.path(client, way) for way in _WAYS)
        rates = topology.capacities_bytes_per_s[2 * client : 2 * client + 2].tolist()
        yield ["ip", "netns", "add", inside]
        yield ["ip", "-n", inside, "link", "set", "lo", "up"]
        yield ["ip", "-n", router, "link", "add", pair, "type", "veth", "peer", "name", "eth0",
               "netns", inside]  # fmt: skip
        yield ["ip", "-n", router, "addr", "add", f"{near}/30", "dev", pair]
        yield ["ip", "-n", router, "link", "set", pair, "up"]
        yield ["ip", "-n", inside, "addr", "add", f"{far}/30", "dev", "eth0"]
        yield ["ip", "-n", inside, "link", "set", "eth0", "up"]
        yield ["ip", "-n", inside, "route", "add", "default", "via", str(near), *route]
        yield from _queue(["tc", "-n", inside], "eth0", rates[0], up.latency_s, queue_s)
        yield from _queue(["tc", "-n", router], pair, rates[1], down.latency_s, queue_s)


def _queue(
    tc: list[str], device: str, rate: float, latency_s: float, queue_s: float
) -> Iterator[list[str]]:
    parent, packets = ["root"], 100_000
    if math.isfinite(rate):
        room = max(round(rate * queue_s), LEAST_QUEUE_BYTES)
        # what is on its way stands in the same queue
        packets = math.ceil((room + rate * latency_s) / _PACKET_BYTES)
        burst = max(1600, round(rate * 5e-4))  # more would let small messages through unshaped
        yield [*tc, "qdisc", "add", "dev", device, "root", "handle", "1:", "tbf", "rate",
               f"{round(8 * rate)}bit", "burst", str(burst), "limit", str(room)]  # fmt: skip
        parent = ["parent", "1:1"]
    if latency_s > 0:
        yield [*tc, "qdisc", "add", "dev", device, *parent, "handle", "10:", "netem", "delay",
               f"{latency_s * 1e6:.0f}us", "limit", str(packets)]  # fmt: skip


def _star(parts: Parts) -> Topology:
    topology = parts.topology
    wrong = None
    if not isinstance(topology, Star):
        wrong = "another topology than a star"
    elif topology.traces:
        wrong = "links whose rates vary"
    elif any(topology.path(client, "up").loss for client in range(topology.clients)):
        wrong = "links that lose packets"
    elif topology.clients > _MOST:
        wrong = f"{topology.clients} clients"
    if wrong is not None:
        raise InputError(
            f"a star of at most {_MOST} clients with constant rates for --shaped", where="network",
            got=wrong,
        )  # fmt: skip
    return topology


def _server_rates(topology: Topology) -> tuple[float, float]:
    """Send and receive, bytes/s."""
    rates = {
        line.name: float(topology.capacities_bytes_per_s[2 * topology.clients + i])
        for i, line in enumerate(topology.lines)
    }
    return rates["server/send"], rates["server/receive"]


def _speed(parts: Parts, client: int) -> float:
    speed = parts.group(client).device.speed
    return parts.fleet.speed(client) if isinstance(speed, Distribution) else float(speed)


def _namespaces(tag: str, clients: int) -> Iterator[str]:
    yield f"simfed-{tag}"
    for client in range(clients):
        yield f"simfed-{tag}-{client}"


def _address(tag: str, pair: int, end: int) -> IPv4Address:
    block = int(tag, 16) % 32
    return IPv4Address("198.18.0.0") + block * _BLOCK + 4 * pair + end


def _cubic() -> list[str]:
    """CUBIC for what is sent that way, where this kernel has it: nearly every Linux sends so, and
    the network model; with BBR, say, short messages share a link in another way."""
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
    has_it = known.exists() and "cubic" in known.read_text().split()
    return ["congctl", "cubic"] if has_it else []


def _limited(tag: str, client: int, speed: float, warden: Warden) -> list[str]:
    """A command before a client's that puts it into a group with its share."""
    if speed >= 1.0:
        return []
    above = cpu_groups()
    assert above is not None
    group = above / f"simfed-{tag}-{client}"
    warden.will(remove=str(group))
    make_group(group, speed, "--shaped")
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(
            f"`{' '.join(command)}` to work", where="--shaped", got=done.stderr.strip()[:300]
        )


def _works(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
