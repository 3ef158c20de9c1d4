"""Deployments of tiny scenarios on the loopback: server here, clients on threads."""

import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from unittest import mock

import pytest
import yaml

import simfed
from simfed import Interrupted
from simfed.deploy import Listening, Patience, Peers, join, serve
from simfed.ground.registry import registry
from simfed.learn import apart
from simfed.scenario import Scenario
from simfed.verify import verify

__all__ = ["assert_same_learning", "serve"]

LEARNED = {
    "prototypes": None,
    "participations": "round client prototype model_version arm k choice outcome "
    "staleness merge",
    "clients": None,
}
"""Table → what learning decides of it; None: all."""


def assert_same_learning(real, plan):
    """A deployment learned the bits of its simulation, which is returned."""
    simulated = simfed.run(plan, progress=False, workers=1)
    for table, columns in LEARNED.items():
        one, other = getattr(real, table), getattr(simulated, table)
        if columns is not None:
            one, other = one[columns.split()], other[columns.split()]
        assert one.equals(other), table
    return simulated


TIMES = {"training": "12 ms", "compression": "0.3 ms"}
QUICK = Patience(handshake_s=120.0, silence_s=120.0, beat_s=0.2, answer_s=120.0)
"""Hearts beat often; a busy machine is waited for."""


PLAIN = """
name: tiny
rounds: 3
seed: 3
method: fedkd
prototypes: {small: {model: lenet5-half}}
clients: [{count: 3, prototype: small, device: x86-2core-vm}]
compression: {k: 500}
policy: {kind: uniform, strategy: top-k}
training: {local_steps: 1}
"""


def scenario(**changes):
    """Three clients of one prototype; anything can be replaced."""
    plain = {**yaml.safe_load(PLAIN), **changes}
    method = plain["method"]
    kind = method["kind"] if isinstance(method, dict) else method
    public = {"public": 16} if registry("method").get(kind).needs_public else {}
    plain.setdefault("dataset", {"name": "mnist-mini", **public})
    return Scenario.model_validate(plain)


ONE_AT_A_TIME = threading.Lock()
"""Models are drawn under PyTorch's one generator, which clients on threads would have
to share."""


class Wrapped:
    """A client's end of which something is other than it was."""

    def __init__(self, end):
        self._end = end

    def __getattr__(self, name):
        return getattr(self._end, name)


class Slow(Wrapped):
    """A client's end that takes its time, and shares its process with others."""

    def __init__(self, end, until):
        super().__init__(end)
        self._until = until

    def work(self, parcel):
        if isinstance(self._until, threading.Event):
            self._until.wait()
        else:
            time.sleep(self._until)
        with ONE_AT_A_TIME:
            return self._end.work(parcel)


@contextmanager
def slowed(**seconds_of):
    """Meanwhile clients are slow: `client_2=1.0`, or until an event is set.

    Their ends.
    """
    real, ends = apart.RealClient, []

    def made(scenario, streams, client, device="cpu"):
        with ONE_AT_A_TIME:
            end = real(scenario, streams, client, device)
        ends.append(end)
        return Slow(end, seconds_of.get(f"client_{client}", 0.0))

    with mock.patch.object(apart, "RealClient", made):
        yield ends


@contextmanager
def wrapped(client, wrap, again=lambda: True):
    """Meanwhile one client's end is `wrap(end)`, as long as `again()`."""
    real = apart.RealClient

    def made(scenario, streams, number, device="cpu"):
        end = real(scenario, streams, number, device)
        return wrap(end) if number == client and again() else end

    with mock.patch.object(apart, "RealClient", made):
        yield


@contextmanager
def watched():
    """Meanwhile the connections of every server that begins to listen are put in this
    list.
    """
    listen, servers = Peers.listen, []

    def noted(peers, *where):
        servers.append(peers)
        return listen(peers, *where)

    with mock.patch.object(Peers, "listen", noted):
        yield servers


def wait_for(condition):
    """However long that takes on a busy machine."""
    while not condition():
        time.sleep(0.005)


class Crowd:
    """Clients on threads, and what became of them."""

    def __init__(self, clients=(0, 1, 2), **options):
        self._clients, self._options = clients, {"patience_s": 120.0, **options}
        self.errors = {}
        self.threads = []

    def begin(self, host, port):
        self._where = host, port
        for client in self._clients:
            self.begin_again(client)

    def begin_again(self, client):
        """Another process of this client, as far as anybody can tell."""
        thread = threading.Thread(
            target=self.join, args=(*self._where, client), daemon=True
        )
        self.threads.append(thread)
        thread.start()

    def join(self, host, port, client):
        try:
            join(host, port, client, **self._options)
        except Exception as error:
            self.errors[client] = error

    def end(self):
        for thread in self.threads:
            thread.join(timeout=300)
        assert not any(thread.is_alive() for thread in self.threads)


def deployed(
    plan,
    out=None,
    *,
    listening=None,
    crowd=None,
    before=lambda *where: None,
    slow=None,
    progress=False,
    **options,
):
    """The run of a scenario with three clients on threads, whose invariants hold.

    `slow`: see `slowed`; `before`: called before they begin.
    """
    crowd = crowd or Crowd()

    def begin(host, port):
        before(host, port)
        crowd.begin(host, port)

    listening = listening or at_a_port(port=0)
    try:
        with slowed(**(slow or {})):
            real = serve(
                plan, out, listening=listening, progress=progress, told=begin, **options
            )
    finally:
        crowd.end()
    assert out is None or verify(out) == []
    return real


def returned(plan, out, stop):
    """The run of a server that `stop` interrupts, and that then goes on."""
    crowd, listening = Crowd(), at_a_port()
    crowd.begin("127.0.0.1", listening.port)
    with pytest.raises(Interrupted):
        serve(plan, out, listening=listening, progress=stop)
    real = serve(plan, out, listening=listening, progress=False, resume=True)
    crowd.end()
    assert crowd.errors == {}
    assert verify(out) == []
    return real


def free_port():
    """One that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def at_a_port(**more):
    """A server's place, which waits as long as a busy machine needs."""
    usual = {"port": free_port(), "patience": QUICK, "join_s": 300.0}
    return Listening(**{**usual, **more})


def serving(plan, folder):
    """An address, and the words of a command that serves a scenario there."""
    file, where = folder / "plan.yaml", f"127.0.0.1:{free_port()}"
    file.write_text(simfed.scenario.dump_scenario(plan))
    out = ["--out", str(folder / "real"), "--no-figures"]
    return where, ["serve", str(file), "--listen", where, *out]


def command(*arguments):
    """A `simfed` process."""
    return subprocess.Popen(
        [sys.executable, "-m", "simfed", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def wait_for_line(process, said):
    """Whether it has said this on standard error before it ended.

    Afterwards nobody reads that any longer. Ended otherwise than well, it is told what
    it said last.
    """
    lines = []
    for line in process.stderr:
        lines.append(line)
        if said in line:
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return True
    assert process.wait() == 0, "".join(lines[-5:])
    return False


def wait_for_round(process, out, round):
    """Until it has saved that round, or has ended."""
    state = out / "checkpoint" / "state.json"
    while process.poll() is None:
        try:
            if int(json.loads(state.read_text())["round"]) >= round:
                return
        except (FileNotFoundError, json.JSONDecodeError):
            pass
        time.sleep(0.005)
