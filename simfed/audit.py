"""Everything that a run directory says, recomputed from its scenario as far as it follows from it.

`simfed.record.verify` holds the files against each other. Here the scenario is taken up again with
the parts that play it: who takes part, K, what travels, and what every client's policy thought,
chose (from its keyed draws) and was told, round after round. What is not recomputed is what the
world gave: the losses and accuracies that learning came to, and the durations drawn for devices.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simfed.assembly import Parts, parts_of_run
from simfed.contract import Task
from simfed.errors import InputError, InputErrors
from simfed.faults import Fate
from simfed.levels import energy_of, split_arm
from simfed.policy import Spent, watches
from simfed.record.invariants import verify as verify_files
from simfed.record.read import Run, open_run, with_turns
from simfed.record.schema import CLIENT_KINDS, HANDLING, HELD_UP
from simfed.scenario.load import import_plugins
from simfed.tasks import pull_for

__all__ = ["verify"]

Broken = Iterator[str]


def verify(path: str | os.PathLike[str], *, allow_plugins: bool = False) -> list[str]:
    """The broken invariants of a run directory, one sentence each; empty: all hold.

    `allow_plugins`: run the plug-ins that it keeps, see `simfed.load_scenario`.

    Raises: `InputError` for what is no finished run directory at all, or plug-ins without consent.
    """
    broken = verify_files(path)
    if broken:
        return broken
    run = open_run(path)
    if run.manifest.get("mode") == "flower":
        return []  # what the app did follows from no scenario
    import_plugins(
        run.scenario, source=f"{path}{os.sep}scenario.yaml", folder=Path(path), allow=allow_plugins,
        allow_outside=True,
    )  # fmt: skip
    checks = _CHECKS_OF_REAL_RUNS if _is_real(run) else _CHECKS
    try:
        parts = parts_of_run(run, path)
        return [sentence for check in checks for sentence in check(run, parts)]
    except InputErrors as several:
        return [str(error) for error in several.errors]
    except InputError as error:
        return [str(error)]


def _is_real(run: Run) -> bool:
    """Clients were real: what they took, moved and where they were follows from no scenario."""
    return bool(run.manifest.get("mode") == "deployed")


def _participations_are_those_of_the_scenario(run: Run, parts: Parts) -> Broken:
    """Prototype, K and bytes of each participation; the bytes of a deployed run are those of its
    real messages."""
    from simfed.sim import TimeOnlyWorkload

    sizes, seen, clients = TimeOnlyWorkload(parts.tasks), _Seen(), parts.scenario.client_count
    held, turns = _held_versions(run, parts), _turns(run, parts)
    for at, row in enumerate(_rows(run, "participations")):
        client, number = row["client"], row["round"]
        who = f"round {number}, client {client}"
        if not 0 <= client < clients:
            seen.add("are of a client that the scenario does not have", who)
            continue
        turn = turns.get(at, 0)
        task = parts.tasks.task(number, client, row["model_version"], turn, held.get(at))
        codec, ks = _allowed_k(row, parts, task.plan.longest)
        k = row["k"]
        if row["prototype"] != task.prototype:
            seen.add("are of another prototype than the scenario's", who)
        elif not ks[0] <= k <= ks[1] and (_arrived(row) or not _is_real(run)):
            seen.add("keep another K than the scenario's", who)
        elif _arrived(row) and not _is_real(run):
            received, planned = row["downlink_bytes"], task.downlink_bytes
            planned *= _copies(parts, task, "download")
            varies = parts.tasks.downlink_varies(task)  # the plan then says the most
            if not (_near(received, planned) or (varies and 0 < received < planned)):
                seen.add("did not receive what the plan sends", who)
            try:
                sent = sizes.size_bytes(task, codec, k)
            except InputError:  # it depends on the data
                continue
            sent *= _copies(parts, task, "upload")
            if not _near(row["uplink_bytes"], sent):
                seen.add("sent another number of bytes than arm, K and plan come to", who)
    yield from seen.sentences("participations")


def _allowed_k(row: dict[str, Any], parts: Parts, length: int) -> tuple[str, tuple[int, int]]:
    """The codec of a participation, and the smallest and largest K that it may have kept."""
    client, (codec, level) = row["client"], split_arm(row["arm"])
    spec = parts.scenario.policy_of_group(parts.group(client))
    if row["choice"] == "forced" or not length:
        pass
    elif energy_of(level) is not None:
        return codec, (1, length)
    elif spec.arms_from is not None and any(parts.recorded[spec.arms_from].levels(client)):
        return codec, (1, length)  # as recorded, which `_policies_chose…` holds it against
    elif spec.sets_k:
        ends = [parts.fleet.k(client, length, split_arm(arm)[1]) for arm in spec.arms(())]
        return codec, (min(ends), max(ends))
    k = parts.fleet.k(client, length, level)
    return codec, (k, k)


def _held_versions(run: Run, parts: Parts) -> dict[int, int]:
    """Row of participations → the version that its client had before, where changes travel down."""
    if parts.scenario.downlink.compression is None:
        return {}
    rows, turns = list(enumerate(_rows(run, "participations"))), _turns(run, parts)
    held: dict[int, int] = {}
    found: dict[int, int] = {}
    for at, row in sorted(rows, key=lambda of: (of[1]["started_at_s"], of[0])):
        client, version = row["client"], row["model_version"]
        if client in held:
            found[at] = held[client]
        # a client takes part in one thing at a time
        turn = turns.get(at, 0)
        task = parts.tasks.task(row["round"], client, version, turn, held.get(client))
        lost = row["outcome"] in ("dropped", "failed")
        worked = row["training_s"] > 0 or row["compression_s"] > 0
        whole = task.downlink_bytes * _copies(parts, task, "download")
        moved = _near(row["downlink_bytes"], whole) and row["outcome"] == "dropped"
        if not lost or worked or moved:
            held[client] = version
    return found


def _turns(run: Run, parts: Parts) -> dict[int, int]:
    """Row of participations → how often its client was started before in the same round; empty
    where nothing is drawn by it."""
    if parts.faults is None or parts.faults.messages is None:
        return {}
    rows = zip(*_columns(run, "participations", "round", "client"), strict=True)
    return {at: turn for at, (turn, _) in enumerate(with_turns(rows))}


def _fates(parts: Parts, task: Task, phase: str) -> list[Fate]:
    """Of the transmissions of a message, up to the one that arrives or is the last."""
    if parts.faults is None or parts.faults.messages is None:
        return [Fate(1, False)]
    found: list[Fate] = []
    while len(found) < parts.faults.messages.tries and (not found or found[-1].lost):
        found.append(parts.faults.fate(task.client, task.key, phase, len(found)))
    return found


def _copies(parts: Parts, task: Task, phase: str) -> float:
    """How often a message's bytes travel until it has arrived; NaN: it never does."""
    fates = _fates(parts, task, phase)
    return np.nan if fates[-1].lost else float(sum(fate.copies for fate in fates))


def _messages_fared_as_drawn(run: Run, parts: Parts) -> Broken:
    """Which were lost, doubled and sent again, and who failed by it."""
    if parts.faults is None or parts.faults.messages is None:
        return
    tracks: dict[tuple[int, str], list[tuple[float, str]]] = {}
    for span in _rows(run, "spans"):
        if span["kind"] in ("download", "upload") and span["client"] is not None:
            shown = tracks.setdefault((span["client"], span["kind"]), [])
            shown.append((span["started_at_s"], span["name"]))
    for shown in tracks.values():
        shown.sort()
    seen, turns = _Seen(), _turns(run, parts)
    for at, row in enumerate(_rows(run, "participations")):
        client, number = row["client"], row["round"]
        task = parts.tasks.task(number, client, row["model_version"], turns[at])
        who, lost = f"round {number}, client {client}", row["outcome"] in ("dropped", "failed")
        for phase in ("download", "upload"):
            shown = tracks.get((client, phase), [])
            first = bisect_left(shown, (row["started_at_s"], ""))
            last = bisect_left(shown, (row["finished_at_s"], ""))
            names = [name for _, name in shown[first:last]]
            fates = _fates(parts, task, phase)
            drawn = [_name_of(fate, phase) for fate in fates]
            if not lost and fates[-1].lost:
                seen.add("were merged although a message of theirs never arrives", who)
            elif names and names != drawn and not (lost and _is_begun(names, fates, phase)):
                seen.add(f"have another fate of their {phase} than is drawn", who)
    yield from seen.sentences("participations")


def _name_of(fate: Fate, phase: str) -> str:
    if fate.lost:
        return "lost"
    return "doubled" if fate.copies == 2 else phase


def _is_begun(names: list[str], fates: list[Fate], phase: str) -> bool:
    """Whether these are the first transmissions of the drawn ones, the last perhaps cut short
    (its loss is then not known yet)."""
    if len(names) > len(fates):
        return False
    drawn = [_name_of(fate, phase) for fate in fates[: len(names)]]
    cut = _name_of(fates[len(names) - 1]._replace(lost=False), phase)
    return names[:-1] == drawn[:-1] and names[-1] in (drawn[-1], cut)


def _devices_froze_as_drawn(run: Run, parts: Parts) -> Broken:
    """Work stands still in the freezes of its device, and never else."""
    if parts.faults is None or parts.faults.freezes is None:
        return
    seen, elsewhere = _Seen(), ("download", "upload", "waiting", "offline", "timeout")
    for span in _rows(run, "spans"):
        client = span["client"]
        if not span["track"].startswith("client ") or client is None or span["kind"] in elsewhere:
            continue
        begun, ended = span["started_at_s"], span["finished_at_s"]
        slack_s = 64 * np.spacing(ended)
        strikes = parts.faults.freezes_of(client)
        if strikes is None or ended - begun <= 2 * slack_s:
            continue
        number = strikes.passed(begun + slack_s)
        same = strikes.border_s(number) >= ended - slack_s
        if not same or (span["kind"] == "frozen") != bool(number % 2):
            seen.add("do not stand still as their device does", f"{span['track']} at {begun!r} s")
    yield from seen.sentences("spans")


def _links_stalled_as_drawn(run: Run, parts: Parts) -> Broken:
    """Links carry nothing in their stalls, and, where they have no trace, in these alone."""
    if parts.faults is None or parts.faults.stalls is None:
        return
    seen, topology = _Seen(), parts.topology
    number = {topology.link_name(link): link for link in topology.traces}
    for row in _rows(run, "links"):
        name, begun, ended = row["link"], row["from_s"], row["to_s"]
        link = number.get(name)
        slack_s = 64 * np.spacing(ended)
        if link is None or ended - begun <= 2 * slack_s:
            continue
        of_link = topology.traces[link].trace
        drawn = of_link.rate_bytes_per_s(of_link.moment((begun + ended) / 2))
        if not _near(row["capacity_bytes_per_s"], drawn):
            seen.add("have another capacity than is drawn", f"{name} from {begun!r} s")
    yield from seen.sentences("links")


def _server_restarted_as_drawn(run: Run, parts: Parts) -> Broken:
    """The server goes down when it is drawn, or at the end of the merge that it was at, and nothing
    is merged then."""
    if parts.faults is None or parts.faults.restarts is None:
        return
    strikes, rounds = parts.faults.restarts, list(_rows(run, "rounds"))
    seen, count = _Seen(), 0
    merged = {
        row["merge"] for row in _rows(run, "participations")
        if row["outcome"] in ("aggregated", "late")
    }  # fmt: skip
    for row in rounds:
        who, due_s = f"round {row['round']}", strikes.border_s(2 * count)
        down_s = row["finished_at_s"] - row["server_s"]
        slack_s = 64 * np.spacing(row["finished_at_s"])
        if row["critical_phase"] != "restart":
            if due_s < down_s - slack_s:
                seen.add("go on although the server is down", who)
            continue
        length_s = strikes.border_s(2 * count + 1) - due_s
        count += 1
        if abs(max(due_s, row["started_at_s"]) - down_s) > slack_s:
            seen.add("end by a restart that is not drawn", who)
        if abs(row["server_s"] - length_s) > 1e-9 * length_s + slack_s:
            seen.add("have a restart of another length than is drawn", who)
        if row["round"] in merged:
            seen.add("merge what the server lost", who)
    yield from seen.sentences("rounds")


def _policies_chose_and_learned_as_recorded(run: Run, parts: Parts) -> Broken:
    """Every client's policy is played again with its keyed draws and its recorded rewards.

    In any mode: what a client starts for a round it chooses knowing the merges before that round.
    """
    shown: dict[tuple[int, int], list[tuple[str, float | None]]] = {}
    for value in _rows(run, "policies"):
        shown.setdefault((value["round"], value["client"]), []).append(
            (value["arm"], value["value"])
        )
    started: dict[int, list[_Pulled]] = {}
    settled: dict[int, list[_Pulled]] = {}
    keyed = ((row["round"], row["client"], row) for row in _rows(run, "participations"))
    for turn, (_, _, row) in with_turns(keyed):
        one = _Pulled(row, turn)
        started.setdefault(row["round"], []).append(one)
        settled.setdefault(row["merge"] or row["round"], []).append(one)
    policies: dict[int, Any] = {}
    seen = _Seen()
    for number in range(1, len(run.table("rounds")) + 1):
        for one in started.get(number, ()):
            client = one.row["client"]
            if client not in policies:
                policies[client] = parts.policy(client)
            rows = shown.get((number, client), [])
            _pull_again(one, policies[client], parts, rows, seen)
        for one in settled.get(number, ()):
            if one.pull is None:
                continue
            policy, lost = policies[one.row["client"]], one.row["outcome"] in ("dropped", "failed")
            if watches(policy) and not lost:
                policy.watch(one.pull, one.spent)
            if lost or one.row["choice"] == "forced":
                policy.void(one.pull)
            elif policy.learns and one.row["reward"] is None:
                seen.add("were not told a reward", one.where)
                return (yield from seen.sentences("participations"))
            elif policy.learns:
                policy.update(one.pull, one.row["reward"])
    yield from seen.sentences("participations")


@dataclass(slots=True)
class _Pulled:
    """One participation, as it is recorded and as its policy chooses again."""

    row: dict[str, Any]
    turn: int
    pull: Any = None

    @property
    def where(self) -> str:
        return f"round {self.row['round']}, client {self.row['client']}"

    @property
    def spent(self) -> Spent:
        row = self.row
        work_s = row["training_s"] + row["compression_s"]
        return Spent(row["downlink_s"], work_s, row["uplink_s"], row["slack_s"] or 0.0)


def _pull_again(
    one: _Pulled, policy: Any, parts: Parts, shown: list[tuple[str, float | None]], seen: _Seen
) -> None:
    """What this policy would have known and chosen, held against what is recorded."""
    row = one.row
    if policy.learns:
        arms = len(policy.arms)
        told = shown[one.turn * arms : (one.turn + 1) * arms]
        expected = dict(zip(policy.arms, policy.values(), strict=True))
        if [arm for arm, _ in told] != list(expected) or not all(
            _same(value, expected[arm]) for arm, value in told
        ):
            seen.add("have values in policies.parquet that their rewards do not come to", one.where)
    task = parts.tasks.task(row["round"], row["client"], row["model_version"], one.turn)
    forced = row["choice"] == "forced"
    if forced and row["arm"] not in parts.scenario.forced_arms:
        seen.add("were forced to another arm than the safeguard says", one.where)
    one.pull = pull_for(task, policy, row["arm"] if forced else None, parts.streams)
    if (one.pull.arm, one.pull.choice) != (row["arm"], row["choice"]):
        seen.add("did not choose what their policy draws", one.where)
    elif (
        one.pull.k is not None
        and row["k"] != parts.fleet.compression(row["client"], one.pull, task.plan.longest)[1]
    ):
        seen.add("keep another K than their policy sets", one.where)


def _gains_are_those_of_the_losses(run: Run, parts: Parts) -> Broken:
    """ρ·(shared loss before − after) + β·(local loss before − after), where all four are known.

    What a client's loss was before is what it was after its last participation, if no merge came
    between and the samples are the same. The first models' shared loss is in no table.
    """
    scenario, method = parts.scenario, parts.scenario.method.made
    if method.personal:
        return  # a client's own model changes between merges too
    undone = dict(zip(*_columns(run, "rounds", "round", "rolled_back"), strict=True))
    measured = _columns(run, "prototypes", "round", "prototype", method.shared_loss or "kd_loss")
    shared = {
        (round, prototype): loss
        for round, prototype, loss in zip(*measured, strict=True)
        if loss is not None
    }
    merged = {row["merge"] for row in _rows(run, "participations") if _arrived(row)}
    accepted = [0, *(round for round in sorted(merged) if not undone.get(round))]
    at_version: dict[str, list[float | None]] = {}
    for prototype in scenario.prototypes:
        known: list[float | None] = []
        for round in accepted:
            last = known[-1] if known else None
            known.append(shared.get((round, prototype), last))
        at_version[prototype] = known
    version_after = {round: version for version, round in enumerate(accepted)}
    told: dict[int, tuple[int | None, float]] = {}
    seen = _Seen()
    for row in _rows(run, "participations"):
        client, merge, loss = row["client"], row["merge"], row["local_loss"]
        if loss is None or not _arrived(row):
            continue
        policy = scenario.policy_of_group(parts.group(client))
        rule, (version, before) = policy.reward, told.get(client, (None, 0.0))
        told[client] = version_after.get(merge), loss
        same_samples = rule.local_loss.data != "batch" and rule.local_loss.credit == "causal"
        shared_before = at_version[row["prototype"]][row["model_version"]]
        shared_after = shared.get((merge, row["prototype"]))
        if method.shared_loss is None:  # there is no such part of a gain
            shared_before = shared_after = 0.0
        if row["gain"] is None or shared_before is None or shared_after is None:
            continue
        if rule.beta and (version != row["model_version"] or not same_samples):
            continue
        terms = (
            rule.rho * shared_before, -rule.rho * shared_after, rule.beta * before,
            -rule.beta * loss,
        )  # fmt: skip
        if abs(sum(terms) - row["gain"]) > 1e-6 * max(map(abs, terms)):
            where = f"round {row['round']}, client {client}"
            seen.add("have a gain that is not that of the losses", where)
    yield from seen.sentences("participations")


def _energy_is_power_by_time(run: Run, parts: Parts) -> Broken:
    """Joules are the profile's watts for each kind of work, by the time that went into it."""
    profiles = [processor.profile for processor in parts.processors]
    if not any(profile.power_w for profile in profiles):
        (known,) = _columns(run, "participations", "energy_j")
        if any(energy is not None for energy in known):
            yield "participations.parquet: energy of devices whose power no profile knows"
        return
    worked: dict[tuple[int, int], dict[tuple[str, str], float]] = {}
    for span in _rows(run, "spans"):
        own = span["kind"] not in CLIENT_KINDS or span["kind"] in HELD_UP
        if span["track"].startswith("client ") and own:
            of = worked.setdefault((span["round"], span["client"]), {})
            lasts_s = span["finished_at_s"] - span["started_at_s"]
            of[span["kind"], span["name"]] = of.get((span["kind"], span["name"]), 0.0) + lasts_s
    devices: dict[int, Any] = {}
    seen = _Seen()
    for row in _rows(run, "participations"):
        client, group = row["client"], int(parts.fleet.group[row["client"]])
        if group not in devices:
            devices[group] = parts.device(client)
        if parts.scenario.aggregation.concurrency is not None and (row["round"], client) in worked:
            continue  # which of a client's starts in one round a span belongs to is not told
        task = parts.tasks.task(row["round"], client, row["model_version"])
        quantities = {
            (w.kind or w.quantity, w.name or w.kind or w.quantity): w.quantity for w in task.work
        }
        quantities[HANDLING, HANDLING] = HANDLING
        spent_s = {
            "downlink": row["downlink_s"], "uplink": row["uplink_s"], "idle": row["waiting_s"],
            "compression": row["compression_s"],
        }  # fmt: skip
        working_s = row["training_s"]
        for (kind, name), lasts_s in worked.get((row["round"], client), {}).items():
            if kind in HELD_UP:  # counted in the phase that it held up, at idle watts
                phase = {"download": "downlink", "upload": "uplink"}.get(name, name)
                if phase in ("downlink", "uplink", "compression"):
                    spent_s[phase] = max(spent_s[phase] - lasts_s, 0.0)
                else:
                    working_s -= lasts_s
                quantity = "idle"
            else:
                working_s -= lasts_s
                quantity = quantities.get((kind, name), "decompression")
            spent_s[quantity] = spent_s.get(quantity, 0.0) + lasts_s
        spent_s["training"] = spent_s.get("training", 0.0) + max(working_s, 0.0)
        expected = devices[group].energy_j(spent_s)
        found = row["energy_j"]
        if (found is None) != (expected is None) or (
            found is not None and abs(found - expected) > 1e-6 * abs(expected) + 1e-9
        ):
            where = f"round {row['round']}, client {client}"
            seen.add("have an energy that is not power by time", where)
    yield from seen.sentences("participations")


def _links_have_their_capacities(run: Run, parts: Parts) -> Broken:
    """Every link is one of the network's, and its capacity what the scenario, or its trace at that
    time, says."""
    network, table = parts.topology, run.table("links")
    begun, ended, capacity = (
        table.column(name).to_numpy() for name in ("from_s", "to_s", "capacity_bytes_per_s")
    )
    clients = network.clients
    of_line = {line.name: 2 * clients + k for k, line in enumerate(network.lines)}
    names, which = np.unique(table.column("link").to_numpy().astype(str), return_inverse=True)
    for number, name in enumerate(names.tolist()):
        access = re.fullmatch(r"client-(\d{1,9})/(up|down)", name)
        link = 2 * int(access[1]) + (access[2] == "down") if access else of_line.get(name, -1)
        if link < 0 or (access and int(access[1]) >= clients):
            yield f"links.parquet: {name!r} is no link of the scenario's network"
            continue
        mine = np.flatnonzero(which == number)
        expected = np.full(len(mine), network.capacities_bytes_per_s[link])
        if link in network.traces:
            trace, offset_s = network.traces[link].trace, network.traces[link].offset_s
            middles = (begun[mine] + ended[mine]) / 2 + offset_s
            expected = np.array([trace.rate_bytes_per_s(trace.moment(t)) for t in middles.tolist()])
        long = ended[mine] - begun[mine] > 128 * np.spacing(ended[mine])  # else its middle rounds
        wrong = long & (np.abs(capacity[mine] - expected) > 1e-9 * expected)
        if wrong.any():
            first = mine[np.flatnonzero(wrong)[0]]
            yield (
                f"links.parquet: {int(wrong.sum())} rows have another capacity than the scenario's "
                f"link, first: {name} from {float(begun[first])!r} s"
            )


def _cohorts_are_those_drawn(run: Run, parts: Parts) -> Broken:
    from simfed.selection import cohort

    scenario = parts.scenario
    synchronous = scenario.aggregation.mode == "synchronous"
    if not synchronous or scenario.participation.selection.kind != "uniform":
        return  # others look at what clients told the server
    table = run.table("participations")
    rounds, clients = (table.column(name).to_numpy() for name in ("round", "client"))
    begun, presence = table.column("started_at_s").to_numpy(), parts.fleet.presence()
    per_round = scenario.participation.clients_per_round
    for number in range(1, len(run.table("rounds")) + 1):
        first, last = np.searchsorted(rounds, (number, number + 1))
        if presence is None:
            asked = cohort(parts.streams, number, scenario.client_count, per_round)
        else:
            there = presence.available(float(begun[first])) if first < last else clients[:0]
            size = None if per_round is None else min(per_round, len(there))
            asked = there[cohort(parts.streams, number, len(there), size)]
        if not np.array_equal(clients[first:last], asked):
            yield (
                f"participations.parquet: round {number} is not of the clients that the scenario "
                "draws"
            )
            return


def _work_is_that_of_the_plans(run: Run, parts: Parts) -> Broken:
    """The spans of clients are the units of their plans, by kind and name."""
    versions = {
        (row["round"], row["client"]): row["model_version"] for row in _rows(run, "participations")
    }
    seen, changes = _Seen(), parts.scenario.downlink.compression
    for span in _rows(run, "spans"):
        key = span["round"], span["client"]
        if not span["track"].startswith("client ") or key not in versions:
            continue
        if span["kind"] in CLIENT_KINDS and span["kind"] != "training":
            continue
        if parts.faults is not None and span["kind"] in HELD_UP:
            continue
        task = parts.tasks.task(*key, versions[key])
        units = {
            (work.kind or work.quantity, work.name or work.kind or work.quantity)
            for work in task.plan.work
        }
        if parts.device(task.client).charges(HANDLING, task.model):
            units.add((HANDLING, HANDLING))
        if changes is not None:
            units.add(("decompression", changes.strategy))
        if (span["kind"], span["name"]) not in units:
            seen.add("are no work of their client's plan", f"round {key[0]}, client {key[1]}")
    yield from seen.sentences("spans")


_CHECKS = (
    _work_is_that_of_the_plans,
    _participations_are_those_of_the_scenario,
    _cohorts_are_those_drawn,
    _policies_chose_and_learned_as_recorded,
    _messages_fared_as_drawn,
    _devices_froze_as_drawn,
    _links_stalled_as_drawn,
    _server_restarted_as_drawn,
    _gains_are_those_of_the_losses,
    _energy_is_power_by_time,
    _links_have_their_capacities,
)

_CHECKS_OF_REAL_RUNS = (
    _participations_are_those_of_the_scenario,
    _policies_chose_and_learned_as_recorded,
    _gains_are_those_of_the_losses,
)


class _Seen:
    """What is wrong, how often, and where first."""

    def __init__(self) -> None:
        self._found: dict[str, list[Any]] = {}

    def add(self, what: str, where: str) -> None:
        self._found.setdefault(what, [0, where])[0] += 1

    def sentences(self, table: str) -> Broken:
        for what, (count, first) in self._found.items():
            yield f"{table}.parquet: {count} rows {what}, first: {first}"


def _rows(run: Run, table: str) -> Iterator[dict[str, Any]]:
    for batch in run.table(table).to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def _columns(run: Run, table: str, *names: str) -> list[list[Any]]:
    found = run.table(table)
    return [found.column(name).to_pylist() for name in names]


def _arrived(row: dict[str, Any]) -> bool:
    return row["outcome"] in ("aggregated", "late")


def _near(found: float, expected: float) -> bool:
    return abs(found - expected) <= 1e-9 * abs(expected)


def _same(value: float | None, expected: float) -> bool:
    """A cell and a value; what is not a number is stored as empty."""
    return np.isnan(expected) if value is None else bool(value == expected)
