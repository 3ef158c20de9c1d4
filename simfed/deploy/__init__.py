"""The same scenario for real: a server and clients that are processes, over sockets.

    messages what travels: a kind, facts, a body; no code wire one connection, by the
    library `websockets` access who may talk: version, token, TLS certificate a server's
    certificate, made here doorstep connections whose other end has not said who it is
    clocks two monotonic clocks on one time line peers the server's end: who is there,
    what was sent, what came world SimPy's clock, run by the real one measured phases of
    a participation from instants by two clocks playing the simulation's server loop, in
    that world serving from a scenario to a run directory (`simfed serve`) joining a
    client's end (`simfed join`) local all of it on one machine (`simfed deploy`)
    shaping network namespaces and shares of processor time for that warden takes down
    what a deployment on one machine has put up fidelity errors of a simulation against
    its deployment (`simfed compare`)

The server loop, its modes, policies, rewards and records are the simulation's own
(`simfed.sim.Simulation`); what a client makes of what arrives is the method's own
(`simfed.learn.apart`). What is here carries messages and takes times. Begin to read in
`serving`, then `playing`.
"""

from __future__ import annotations

from simfed.ground.lazy import load_names

_HOMES = {
    "Gone": "messages",
    "Instants": "measured",
    "Listening": "serving",
    "Message": "messages",
    "Patience": "peers",
    "Peers": "peers",
    "Refused": "messages",
    "Seat": "access",
    "Wire": "wire",
    "join": "joining",
    "serve": "serving",
}

__all__ = sorted(_HOMES)
__getattr__ = load_names(__name__, _HOMES)
