"""Measure what real Linux TCP takes over emulated links, as a case file for
`simfed.net.replay`.

    sudo python analysis/linux_tcp.py CASES.json [--kind singles|stars]
        [--congestion cubic] [--out measured.json]

Needs Linux, root (network namespaces, TUN devices) and iproute2; nothing outside the
namespaces is touched, and they are gone when the script ends. Every client and the
server have a namespace with the kernel's own TCP in it. This process is the network
between them: it takes every IP packet from a TUN device and passes it along a path of
links, each with its rate, its delay and a drop-tail queue. A packet counts with 2 bytes
of link header, as on a point-to-point link (`header_bytes` 54).

Without a case file, `--kind` draws cases: single transfers over rates × delays × sizes,
or stars of ten clients. Finish times count from a start that each sender waits for,
until the server's application holds the last byte.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LINK_HEADER_BYTES = 2
CLONE_NEWNET = 0x40000000
PORT = 5000


class Queue:
    """One direction of a link: serialise, then delay.

    Drop what finds the queue full.
    """

    def __init__(self, rate_bytes_per_s: float, delay_s: float, packets: int) -> None:
        self.rate = rate_bytes_per_s
        self.delay_s = delay_s
        self.packets = packets
        self.free_at_s = 0.0
        self.leaving: list[float] = []
        self.dropped = 0

    def arrival(self, size: int, now_s: float) -> float | None:
        """When a packet that comes now is at the other end; None if it is dropped."""
        while self.leaving and self.leaving[0] <= now_s:
            heapq.heappop(self.leaving)
        if len(self.leaving) > self.packets:
            self.dropped += 1
            return None
        self.free_at_s = (
            max(self.free_at_s, now_s) + (size + LINK_HEADER_BYTES) / self.rate
        )
        heapq.heappush(self.leaving, self.free_at_s)
        return self.free_at_s + self.delay_s


def in_namespace(name: str) -> None:
    """Move this thread into a named network namespace."""
    with open(f"/run/netns/{name}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter namespace {name}")


def tun(namespace: str, address: str) -> int:
    """A TUN device in a namespace, its default route."""
    in_namespace(namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(
        device, 0x400454CA, struct.pack("16sH", b"tun0", 0x1001)
    )  # TUNSETIFF, TUN, no header
    for command in (
        f"addr add {address}/32 dev tun0",
        "link set tun0 up mtu 1500 txqueuelen 10000",
        "link set lo up",
        "route add default dev tun0",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    return device


def forward(case: dict[str, Any], devices: list[int], server: int, stop: int) -> int:
    """Be the network of one case until `stop` is readable; packets dropped."""
    links = case["links"]
    rates = [link["capacity_bytes_per_s"] for link in links]

    def limit(link: int) -> int:
        # as in the ns-3 tables: 400 packets where flows meet, else twice the
        # bandwidth-delay product
        shared = sum(link in flow["path"] for flow in case["flows"]) > 1
        product = rates[link] * 2 * links[link]["latency_s"] / 1500
        return 400 if shared else max(100, int(2 * product))

    up = [Queue(rates[k], links[k]["latency_s"], limit(k)) for k in range(len(links))]
    down = [Queue(rates[k], links[k]["latency_s"], limit(k)) for k in range(len(links))]
    paths = [[up[k] for k in flow["path"]] for flow in case["flows"]]
    backs = [[down[k] for k in reversed(flow["path"])] for flow in case["flows"]]
    heap: list[tuple[float, int, bytes, list[Queue], int, int]] = []
    number = 0

    def travel(
        packet: bytes, way: list[Queue], hop: int, target: int, now_s: float
    ) -> None:
        nonlocal number
        at_s = way[hop].arrival(len(packet), now_s)
        if at_s is not None:
            number += 1
            heapq.heappush(heap, (at_s, number, packet, way, hop + 1, target))

    while True:
        now_s = time.monotonic()
        while heap and heap[0][0] <= now_s:
            at_s, _, packet, way, hop, target = heapq.heappop(heap)
            if hop < len(way):
                travel(packet, way, hop, target, at_s)
            else:
                os.write(target, packet)
        # not epoll: its timeouts are whole milliseconds
        wait_s = max(heap[0][0] - now_s, 0.0) if heap else 1.0
        for device in select.select([*devices, server, stop], [], [], wait_s)[0]:
            if device == stop:
                return sum(queue.dropped for queue in (*up, *down))
            try:
                packet = os.read(device, 4096)
            except BlockingIOError:
                continue
            if packet[0] >> 4 != 4:
                continue  # IPv6 neighbour chatter
            now_s = time.monotonic()
            if device == server:
                flow = packet[19] - 2
                travel(packet, backs[flow], 0, devices[flow], now_s)
            else:
                flow = devices.index(device)
                travel(packet, paths[flow], 0, server, now_s)


def serve(namespace: str, flows: int, ready: int, result: int) -> None:
    """Child: accept one connection per flow, note when each has all its bytes."""
    in_namespace(namespace)
    listener = socket.create_server(("10.0.0.1", PORT), backlog=512)
    os.write(ready, b"x")
    poll = select.epoll()
    left: dict[int, int] = {}  # once the header has said how much
    which: dict[int, tuple[socket.socket, int]] = {}
    poll.register(listener, select.EPOLLIN)
    ends: dict[int, float] = {}
    while len(ends) < flows:
        for number, _ in poll.poll():
            if number == listener.fileno():
                connection, (address, _) = listener.accept()
                poll.register(connection, select.EPOLLIN)
                which[connection.fileno()] = (
                    connection,
                    int(address.rsplit(".", 1)[1]) - 2,
                )
                continue
            connection, flow = which[number]
            data = connection.recv(1 << 18)
            if number not in left:
                left[number], data = struct.unpack("!q", data[:8])[0] - 8, data[8:]
            left[number] -= len(data)
            if left[number] <= 0:
                ends[flow] = time.monotonic()
                poll.unregister(connection)
                connection.close()
                del left[number]  # the next connection may get its number
    os.write(result, json.dumps([ends[k] for k in range(flows)]).encode())


def send(namespace: str, size: int, at_s: float, congestion: str) -> None:
    """Child: wait for the start, connect, send."""
    in_namespace(namespace)
    connection = socket.socket()
    connection.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode()
    )
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    payload = struct.pack("!q", size) + bytes(max(size - 8, 0))
    time.sleep(max(at_s - time.monotonic() - 0.002, 0.0))
    while time.monotonic() < at_s:
        pass
    connection.connect(("10.0.0.1", PORT))
    connection.sendall(payload)
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)


def child(what: Any, *arguments: Any) -> int:
    """Run a function in a forked process."""
    process = os.fork()
    if process == 0:
        try:
            what(*arguments)
            os._exit(0)
        finally:
            os._exit(1)
    return process


def measure(case: dict[str, Any], congestion: str) -> dict[str, Any]:
    """The case with `finish_s` as measured, and `packets_lost`."""
    flows = case["flows"]
    names = [f"simfed-{k}" for k in range(len(flows))] + ["simfed-server"]
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        # the kernel remembers round trips and thresholds of earlier connections; ours
        # are fresh
        devices = [tun(name, f"10.0.0.{k + 2}") for k, name in enumerate(names[:-1])]
        server = tun(names[-1], "10.0.0.1")
        (ready_out, ready_in), (result_out, result_in) = os.pipe(), os.pipe()
        processes = [child(serve, names[-1], len(flows), ready_in, result_in)]
        os.read(ready_out, 1)
        begin_s = time.monotonic() + 0.3 + 0.02 * len(flows)
        for name, flow in zip(names, flows, strict=False):
            start_s = begin_s + flow["start_s"]
            processes.append(child(send, name, flow["size_bytes"], start_s, congestion))
        dropped = forward(case, devices, server, result_out)
        ends = json.loads(os.read(result_out, 1 << 20))
        for process in processes:
            os.kill(process, 9)
            os.waitpid(process, 0)
        for device in (*devices, server, ready_out, ready_in, result_out, result_in):
            os.close(device)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)
    measured = [
        {**flow, "finish_s": end - begin_s}
        for flow, end in zip(flows, ends, strict=True)
    ]
    return {**case, "flows": measured, "packets_lost": dropped}


def length_s(case: dict[str, Any]) -> float:
    """When its last flow finishes."""
    return max(float(flow["finish_s"]) for flow in case["flows"])


def drawn(kind: str) -> list[dict[str, Any]]:
    """Cases like those of the ns-3 tables."""
    if kind == "singles":
        return [
            {
                "name": f"{mbps}Mbps-{ms}ms-{size}B",
                "links": [
                    {"capacity_bytes_per_s": mbps * 125e3, "latency_s": ms / 1e3}
                ],
                "flows": [{"start_s": 0.0, "size_bytes": size, "path": [0]}],
            }
            for mbps in (1, 10, 50)
            for ms in (5, 21, 50, 100)
            for size in (10_000, 100_000, 300_000, 1_000_000, 3_000_000)
            if size <= mbps * 1_000_000
        ]
    rng = random.Random(0)
    cases = []
    for number, (server_mbps, size) in enumerate(
        ((20, 300_000), (200, 300_000), (20, 1_000_000), (30, 1_000_000))
    ):
        access = [rng.lognormvariate(13.0, 0.8) for _ in range(10)]
        links = [
            {"capacity_bytes_per_s": c, "latency_s": rng.uniform(0.005, 0.06)}
            for c in access
        ]
        links.append({"capacity_bytes_per_s": server_mbps * 125e3, "latency_s": 0.001})
        starts = sorted(rng.uniform(0, 3) for _ in access)
        flows = [
            {"start_s": s, "size_bytes": size, "path": [k, 10]}
            for k, s in enumerate(starts)
        ]
        cases.append({"name": f"star10-{number}", "links": links, "flows": flows})
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "cases", nargs="?", type=Path, help="case file; its finish_s are replaced"
    )
    parser.add_argument("--kind", choices=("singles", "stars"), default="singles")
    parser.add_argument("--congestion", default="cubic")
    parser.add_argument(
        "--repeat", type=int, default=1, help="keep each case's fastest run"
    )
    parser.add_argument("--out", type=Path, default=Path("measured.json"))
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("linux_tcp: needs root, for network namespaces and TUN devices")
    cases = (
        json.loads(arguments.cases.read_text())["cases"]
        if arguments.cases
        else drawn(arguments.kind)
    )
    # neither the network nor its users must wait for other programs of this machine
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    recorded = []
    for case in cases:
        # what disturbs a measurement (a busy machine) only ever makes it longer
        runs = [measure(case, arguments.congestion) for _ in range(arguments.repeat)]
        recorded.append(min(runs, key=length_s))
        last = length_s(recorded[-1])
        print(
            f"{case['name']}: {last:.4f} s, {recorded[-1]['packets_lost']} lost",
            flush=True,
        )
        release = os.uname().release.partition("-")[0]
        source = (
            f"Linux {release}, TCP {arguments.congestion}, emulated drop-tail links"
        )
        arguments.out.write_text(
            json.dumps({"source": source, "cases": recorded}) + "\n"
        )


if __name__ == "__main__":
    main()
