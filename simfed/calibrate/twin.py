"""A scenario fitted to a log of somebody's run: its twin.

Rounds are taken as synchronous: everybody asked starts with the round, the server works
once all have ended. Per client, work (training, compression, and the time between
logged phases) becomes a speed, transfers become rates; the server's part of a round is
what its clients do not fill. Means are fitted, since totals are what is to come out;
work scatters log-normally around a client's mean. The first half of a log, ten rounds
at most, is left out where rounds are not named: caches warm up and clocks settle.

What is ignored: scatter of transfers; links that change or are shared (a rate is what a
client had, whoever else was sending); how work would change with other models, batches
or data.
"""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import yaml

from simfed.calibrate.profiles import build_shape_node
from simfed.calibrate.twin_log import LogRow
from simfed.device import ModelWork
from simfed.ground.arrays import Floats
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain
from simfed.ground.writing import put_output, writing

_SETTLING = 10
_STAND_INS = (
    "logistic-regression",
    "lenet5-half",
    "lenet5",
    "perceptron",
    "wresnet40-2",
    "resnet18",
)
_DATASET = "mnist-mini"
_NO_WORK = ("round", "server", "waiting")
"""Phases in which no client is at work."""
_POWERED = ("training", "compression", "uplink", "downlink", "idle")
"""Phases that can take time, in the words of a profile's `power`."""
_LEAST_CV = 1e-9
"""Rounding errors of instants are no scatter."""
_VARIED = 1.5
"""Sizes of one client's messages that differ by less than this do not tell latency from
rate."""


class FittedNumber(NamedTuple):
    """A number of a twin with its standard error."""

    value: float
    error: float
    """Standard error; NaN from a single measurement."""


class Forecast(NamedTuple):
    """The prediction of rounds to come."""

    mean_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True)
class TwinClient:
    """The facts of one client from the log.

    Transfers are seconds of one message; None where the log has none.
    """

    name: str
    work: FittedNumber
    """Seconds of training, compression and everything beside transfers."""
    upload: FittedNumber | None
    download: FittedNumber | None
    message_bytes: float
    """Mean size of its uploads, else of its downloads; 0 where none is logged."""
    latency_s: float
    """Seconds of an upload's latency; 0 where the log does not tell it apart."""
    rounds: int


@dataclass(frozen=True)
class Twin:
    """A fleet and a server that take as long as the logged ones.

    `fit_twin` makes it, `write` gives a scenario of it, `predict` says how long further
    rounds take.
    """

    clients: tuple[TwinClient, ...]
    server: FittedNumber
    work_cv: float
    """Coefficient of variation of a client's work from round to round."""
    server_cv: float
    participants: float
    """Clients per round, on average."""
    rounds_s: Floats
    """Lengths of the rounds that were fitted."""
    scattered_s: Floats
    """Lengths of the rounds that tell the scatter: all but the first."""
    logged_rounds: int
    power_w: dict[str, float]
    """Watts per phase, where joules are logged."""
    training_share: float
    """The share of training in a participation's work, from 0 to 1."""
    untold: tuple[str, ...]
    """Sentences on what the log cannot tell."""

    def predict(self, rounds: int, confidence: float = 0.9) -> Forecast:
        """Return the mean length of so many further rounds, with an interval.

        It is the one that the scatter of the logged rounds leaves (Student's t).

        Args:
            rounds: how many.
            confidence: of the interval, from 0 to 1.

        Raises:
            InputError: only one round tells of the scatter.
        """
        from scipy import stats

        known = len(self.scattered_s)
        if known < 2:
            allowed = (
                "two rounds or more, the log's first left out, to tell their scatter"
            )
            raise InputError(allowed, where="log", got=known)
        quantile = float(stats.t.ppf((1 + confidence) / 2, known - 1))
        scatter_s = float(self.scattered_s.std(ddof=1))
        half_s = quantile * scatter_s * math.sqrt(1 / len(self.rounds_s) + 1 / rounds)
        mean_s = float(self.rounds_s.mean())
        return Forecast(mean_s, max(mean_s - half_s, 0.0), mean_s + half_s)

    def write(
        self, out: Path, *, model: str | None = None, source: str = "a log"
    ) -> list[Path]:
        """Write the scenario to `out`, and return the paths.

        Its clients are a CSV table beside it, and where joules are known there is a
        profile.

        Args:
            out: the scenario's file.
            model: what stands for the logged model; the one of nearest size if omitted.
            source: what the log is called in the scenario's comment.

        Raises:
            InputError: a file cannot be written.
        """
        model = model or self._nearest_model()
        table, profile = (
            out.with_name(f"{out.stem}-{name}")
            for name in ("clients.csv", "device.yaml")
        )
        scenario = self._scenario(out.stem, model, table, profile, source)
        files = {out: scenario, table: self._table(model)}
        if self.power_w:
            files[profile] = yaml.safe_dump(self._profile(model), sort_keys=False)
        for path, text in files.items():
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            put_output(path, text)
        return list(files)

    @property
    def work_s(self) -> float:
        """The seconds of the client whose speed is 1: the mean over clients."""
        return float(np.mean([client.work.value for client in self.clients]))

    def _nearest_model(self) -> str:
        """Return the model whose bytes are nearest to the logged messages'."""
        logged = [c.message_bytes for c in self.clients if c.message_bytes]
        if not logged:
            return _STAND_INS[0]
        size = float(np.median(logged))
        return min(
            _STAND_INS, key=lambda name: abs(math.log(_count_model_bytes(name) / size))
        )

    def _table(self, model: str) -> str:
        """Return a line per client, with standard errors and how often it is logged.

        Args:
            model: whose bytes the links carry in the logged seconds.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        text.write(
            "# `client` as logged; *_error: standard errors; links carry the model's "
            "bytes\n"
        )
        writer.writerow(
            (
                "client",
                "speed",
                "work_s",
                "work_error",
                "up_bytes_per_s",
                "up_error",
                "down_bytes_per_s",
                "down_error",
                "latency_s",
                "rounds",
            )
        )
        size = _count_model_bytes(model)
        for client in self.clients:
            speed = self.work_s / client.work.value if client.work.value else 1.0
            up = _compute_rate(size, client.upload, client.latency_s)
            down = _compute_rate(size, client.download, 0.0)
            numbers = (speed, *client.work, *up, *down, client.latency_s)
            writer.writerow(
                (client.name, *(_format_number(x) for x in numbers), client.rounds)
            )
        return text.getvalue()

    def _scenario(
        self, name: str, model: str, table: Path, profile: Path, source: str
    ) -> str:
        """Return the scenario as YAML, with what the log cannot tell as comments.

        Args:
            name: the scenario's.
            model: that stands for the logged one.
            table: of the clients, beside the scenario.
            profile: with the watts, beside the scenario.
            source: what the log is called.
        """
        link: dict[str, Plain] = {}
        for key in ("up", "down"):
            if all(getattr(client, f"{key}load") for client in self.clients):
                link[key] = {"column": f"{key}_bytes_per_s", "unit": "B/s"}
        if any(client.latency_s for client in self.clients):
            link["latency"] = {"column": "latency_s", "unit": "s"}
            link["down_latency"] = "0 s"
        device: dict[str, Plain] = {"speed": {"column": "speed"}}
        if self.power_w:
            device["profile"] = profile.name
        else:
            device |= self._describe_work()
        if self.work_cv:
            device["noise"] = _build_noise(self.work_cv)
        server: dict[str, Plain] = {"handling": f"{self.server.value:.7g} s"}
        if self.server_cv:
            server["noise"] = _build_noise(self.server_cv)
        plain: dict[str, Plain] = {
            "name": name,
            "seed": 0,
            "rounds": self.logged_rounds,
            "method": "fedavg",
            "dataset": {"name": _DATASET},
            "prototypes": {"twin": {"model": model}},
            "clients": [
                {
                    "count": len(self.clients),
                    "prototype": "twin",
                    "devices": {"table": table.name, "rows": "in-order"},
                    "device": device,
                    "link": link,
                }
            ],
            "training": {"local_steps": 1},
            "compression": {"strategies": ["dense"]},
            "policy": {"kind": "uniform", "strategy": "dense"},
            "server": {"device": server},
            "charge": {"buffers": False},
        }
        asked = round(self.participants)
        if asked < len(self.clients):
            plain["participation"] = {"clients_per_round": asked}
        notes = [
            (f"Fitted to {source} by `simfed twin`: {self.describe_rounds()}"),
            *self.untold,
        ]
        comment = "".join(f"# {note}\n" for note in notes)
        return comment + yaml.safe_dump(
            plain, sort_keys=False, allow_unicode=True, width=100
        )

    def _profile(self, model: str) -> dict[str, Plain]:
        """Return a profile of the client whose speed is 1, with its watts."""
        from simfed.learn.catalogue import facts

        work = self._describe_work()
        shape = build_shape_node(ModelWork.of(facts(model, _DATASET)))
        return {
            "kind": "table",
            "name": "twin",
            "description": "seconds and watts fitted to a log by `simfed twin`",
            "measured_on": {model: shape},
            "training": {model: {32: work["training"]}},
            "handling": work["handling"],
            "power": {
                # what was not logged takes the least of what was
                phase: f"{self.power_w.get(phase, min(self.power_w.values())):.6g} W"
                for phase in _POWERED
            },
        }

    def _describe_work(self) -> dict[str, str]:
        """Return the seconds of the client whose speed is 1, as a file says them.

        What is not training is handling, which is charged whatever the codec.
        """
        training_s = self.training_share * self.work_s
        work_s = {"training": training_s, "handling": self.work_s - training_s}
        return {name: f"{seconds:.7g} s" for name, seconds in work_s.items()}

    def describe_rounds(self) -> str:
        """Return which rounds were fitted and how long they were."""
        mean_s, fitted = float(self.rounds_s.mean()), len(self.rounds_s)
        return (
            f"{fitted} of {self.logged_rounds} rounds, {mean_s:.4g} s each on average."
        )


def fit_twin(log: Sequence[LogRow], rounds: tuple[int, int] | None = None) -> Twin:
    """Return the twin of a log.

    Args:
        log: lines of `read_log`, in any order.
        rounds: the first and the last one to fit; if omitted, the log's later ones,
        which caches and clocks have settled in.

    Returns:
        Speeds, rates, scatter and the server's seconds that come to the means of the
        fitted rounds.

    Raises:
        InputError: rounds overlap (no synchronous server), or none is there to fit.
    """
    by_round: dict[int, list[LogRow]] = defaultdict(list)
    for row in log:
        by_round[row.round].append(row)
    spans = _compute_round_spans(by_round)
    numbers = [number for number, span in spans.items() if span.whole] or list(spans)
    if rounds is None:
        chosen = numbers[min(len(numbers) // 2, _SETTLING) :]
    else:
        chosen = [number for number in numbers if rounds[0] <= number <= rounds[1]]
    if not chosen:
        raise InputError(
            f"rounds from {numbers[0]} to {numbers[-1]}", where="--rounds", got=rounds
        )
    lengths_s = np.array([spans[number].length_s for number in chosen])
    scattered_s = lengths_s
    if rounds is None:
        scattered_s = np.array([spans[number].length_s for number in numbers[1:]])
    rows = [row for number in chosen for row in by_round[number]]
    flights = [
        work
        for number in chosen
        for work in _list_work(by_round[number], spans[number])
    ]
    clients = _fit_clients(flights)
    servers_s = np.array([spans[number].server_s for number in chosen])
    training_s = sum(flight.phases_s.get("training", 0.0) for flight in flights)
    work_s = sum(flight.work_s for flight in flights)
    whole = not any(flight.phases_s for flight in flights)
    return Twin(
        clients=clients,
        server=_estimate_mean(servers_s),
        work_cv=_estimate_scatter(flights),
        server_cv=_estimate_variation(servers_s),
        participants=len(flights) / len(chosen),
        rounds_s=lengths_s,
        scattered_s=scattered_s,
        logged_rounds=len(by_round),
        power_w=_fit_power(rows),
        training_share=1.0 if whole or not work_s else training_s / work_s,
        untold=tuple(_list_untold(log, rows, clients, whole)),
    )


class _RoundSpan(NamedTuple):
    started_at_s: float
    length_s: float
    server_s: float
    """Seconds of the round in which no client is at work."""
    whole: bool
    """True if its end is known: by the next round's start, or by a line of the
    server's."""


class _LoggedWork(NamedTuple):
    """The work of one client in one round."""

    client: str
    phases_s: dict[str, float]
    work_s: float
    sizes: dict[str, float]


def _list_work(rows: Sequence[LogRow], span: _RoundSpan) -> list[_LoggedWork]:
    """Return the work of each client in a round.

    Args:
        rows: the log's lines on it.
        span: from when to when it lasted.
    """
    by_client = _group_by_client(row for row in rows if row.phase not in _NO_WORK)
    if any(by_client):  # what is said of all together adds nothing
        by_client.pop("", None)
    if not by_client:
        return [_LoggedWork("", {}, span.length_s - span.server_s, {})]
    flights = []
    for client, its_rows in by_client.items():
        phases_s: dict[str, float] = defaultdict(float)
        sizes: dict[str, float] = defaultdict(float)
        for row in its_rows:
            if row.phase != "participation":
                phases_s[row.phase] += row.duration_s
            if row.moved_bytes is not None:
                sizes[row.phase] += row.moved_bytes
        whole_s = max(row.finished_at_s for row in its_rows) - span.started_at_s
        sent_s = phases_s.get("download", 0.0) + phases_s.get("upload", 0.0)
        work_s = max(0.0, whole_s - sent_s)
        flights.append(_LoggedWork(client, phases_s, work_s, sizes))
    return flights


_Row = TypeVar("_Row", LogRow, _LoggedWork)


def _compute_round_spans(by_round: dict[int, list[LogRow]]) -> dict[int, _RoundSpan]:
    """Return a round's beginning and length: until the next one's start.

    The last one is as long as its lines say.

    Raises:
        InputError: a round ends after the next one has begun.
    """
    starts = {
        number: min(row.started_at_s for row in rows)
        for number, rows in sorted(by_round.items())
    }
    numbers = list(starts)
    spans = {}
    for at, number in enumerate(numbers):
        rows = by_round[number]
        work = [row for row in rows if row.phase not in _NO_WORK]
        busy = [row for row in work if row.client] or work
        end_s = max(row.finished_at_s for row in rows)
        whole = any(not row.client for row in rows)
        if at + 1 < len(numbers) and numbers[at + 1] == number + 1:
            next_s = starts[number + 1]
            late = max(busy or rows, key=lambda row: row.finished_at_s)
            if late.finished_at_s > next_s + 1e-6 * max(1.0, abs(next_s)):
                problem = f"round {number} ends after round {number + 1} has begun"
                allowed = "the log of a synchronous server"
                raise InputError(allowed, where=f"line {late.line}", problem=problem)
            end_s, whole = next_s, True
        length_s = end_s - starts[number]
        busy_s = (
            max((row.finished_at_s for row in busy), default=end_s) - starts[number]
        )
        if not busy:
            busy_s = length_s - sum(
                row.duration_s for row in rows if row.phase == "server"
            )
        spans[number] = _RoundSpan(
            starts[number], length_s, max(0.0, length_s - busy_s), whole
        )
    return spans


def _fit_clients(flights: Sequence[_LoggedWork]) -> tuple[TwinClient, ...]:
    """Return the means of each client's work and transfers, with standard errors."""
    clients = []
    for name, rows in _group_by_client(flights).items():
        up_s, up_bytes = _collect_transfers(rows, "upload")
        down_s, down_bytes = _collect_transfers(rows, "download")
        sizes = up_bytes if up_bytes.any() else down_bytes
        clients.append(
            TwinClient(
                name=name or "all",
                work=_estimate_mean(np.array([row.work_s for row in rows])),
                upload=_estimate_mean(up_s) if len(up_s) else None,
                download=_estimate_mean(down_s) if len(down_s) else None,
                message_bytes=float(sizes.mean()) if len(sizes) else 0.0,
                latency_s=_fit_latency_s(up_s, up_bytes),
                rounds=len(rows),
            )
        )
    return tuple(clients)


def _collect_transfers(
    rows: Iterable[_LoggedWork], phase: str
) -> tuple[Floats, Floats]:
    """Return seconds of transfers, and bytes where they are logged throughout.

    Args:
        rows: the work of one client.
        phase: `upload` or `download`.
    """
    logged = [row for row in rows if row.phases_s.get(phase, 0.0) > 0]
    seconds = np.array([row.phases_s[phase] for row in logged])
    sizes = np.array([row.sizes.get(phase, math.nan) for row in logged])
    return seconds, sizes if np.isfinite(sizes).all() else np.array([])


def _fit_latency_s(seconds: Floats, sizes: Floats) -> float:
    """Return the seconds of an upload of no bytes, by least squares.

    0 where sizes hardly differ (`_VARIED`).
    """
    if len(sizes) < 3 or sizes.max() < _VARIED * sizes.min():
        return 0.0
    return max(0.0, float(np.polyfit(sizes, seconds, 1)[1]))


def _fit_power(rows: Iterable[LogRow]) -> dict[str, float]:
    """Return watts per phase, in the words of a profile's `power`."""
    words = {
        "training": "training",
        "compression": "compression",
        "upload": "uplink",
        "download": "downlink",
        "waiting": "idle",
        "participation": "training",
    }
    joules: dict[str, float] = defaultdict(float)
    seconds: dict[str, float] = defaultdict(float)
    for row in rows:
        if row.client and row.joules is not None and row.duration_s > 0:
            word = words[row.phase]
            joules[word] += row.joules
            seconds[word] += row.duration_s
    return {word: joules[word] / seconds[word] for word in joules}


def _list_untold(
    log: Sequence[LogRow],
    rows: Sequence[LogRow],
    clients: Sequence[TwinClient],
    whole: bool,
) -> Iterable[str]:
    """Yield sentences on what the log, or its fitted rounds, cannot tell.

    Args:
        log: all of it.
        rows: of the fitted rounds.
        clients: what was fitted.
        whole: it has no phases, only whole participations.
    """
    named = {row.client for row in rows} - {""}
    absent = {row.client for row in log} - {"", *named}
    if absent:
        yield (
            f"Untold: {len(absent)} further clients, which took part in no round that "
            f"was fitted."
        )
    if not named:
        yield (
            "Untold: how many clients there were, and which was slow; one stands "
            "for all."
        )
    if whole:
        yield (
            "Untold: shares of computing and links; all of a participation counts "
            "as training."
        )
    elif all(client.upload is None and client.download is None for client in clients):
        yield "Untold: links; transfers are part of the work, and links are unlimited."
    elif not any(client.latency_s for client in clients):
        yield (
            "Untold: latency, which is in the rates: sizes do not differ, or are "
            "not logged."
        )
    if any(row.phase in ("upload", "download") for row in rows):
        yield (
            "Untold: whether links were shared; a rate is what the client had "
            "beside the others."
        )
    if all(row.moved_bytes is None for row in rows):
        yield (
            "Untold: bytes; the model stands for a size, and rates are what gives "
            "the seconds."
        )
    if not any(row.phase in ("server", "round") for row in rows):
        yield (
            "Untold: what the server did; its part is what lies between the rounds' "
            "clients."
        )
    if all(row.joules is None for row in rows):
        yield "Untold: joules."


def _estimate_scatter(flights: Sequence[_LoggedWork]) -> float:
    """Return the coefficient of variation of work around each client's mean.

    It is pooled over clients, of log-normal work: sqrt(exp(variance of logs) − 1).
    """
    by_client = _group_by_client(flight for flight in flights if flight.work_s > 0)
    logs = [[math.log(row.work_s) for row in rows] for rows in by_client.values()]
    squares = sum(float(np.var(own)) * len(own) for own in logs)
    freedom = sum(len(own) - 1 for own in logs)
    variation = math.sqrt(math.expm1(squares / freedom)) if freedom else 0.0
    return variation if variation > _LEAST_CV else 0.0


def _estimate_variation(seconds: Floats) -> float:
    """Return the coefficient of variation; 0 of one value."""
    mean_s = float(seconds.mean())
    if len(seconds) < 2 or mean_s <= 0:
        return 0.0
    variation = float(seconds.std(ddof=1)) / mean_s
    return variation if variation > _LEAST_CV else 0.0


def _estimate_mean(values: Floats) -> FittedNumber:
    """Return the mean with its standard error."""
    error = (
        float(values.std(ddof=1)) / math.sqrt(len(values))
        if len(values) > 1
        else math.nan
    )
    return FittedNumber(float(values.mean()), error)


def _compute_rate(
    size_bytes: float, transfer: FittedNumber | None, latency_s: float
) -> tuple[float, float]:
    """Return a link's bytes per second and their standard error; NaN without transfers.

    Args:
        size_bytes: of the model that stands for the logged one.
        transfer: its seconds on the link.
        latency_s: of them, taken as known.
    """
    if transfer is None:
        return math.nan, math.nan
    moving_s = max(transfer.value - latency_s, 1e-9)
    rate = size_bytes / moving_s
    return rate, rate * transfer.error / moving_s


def _count_model_bytes(model: str) -> int:
    from simfed.learn.catalogue import facts

    return facts(model, _DATASET).parameter_bytes


def _build_noise(cv: float) -> dict[str, Plain]:
    return {"kind": "lognormal", "cv": float(f"{cv:.6g}")}


def _group_by_client(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    """Return rows by client, in the order of their numbers, names behind them."""
    groups: dict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        groups[row.client].append(row)

    def order(client: str) -> tuple[float, str]:
        return (float(client), "") if client.isdecimal() else (math.inf, client)

    return {client: groups[client] for client in sorted(groups, key=order)}


def _format_number(number: float) -> str:
    return "" if math.isnan(number) else f"{number:.9g}"
