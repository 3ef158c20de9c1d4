"""Errors of a simulation against the deployment of the same scenario.

They are found from both run directories, by `fidelity`; `simfed compare` prints them,
`simfed.deploy.fidelity_page` draws them. Participations are matched by round, client
and turn, and count where both arrived; rounds by their number. An error is simulated
over real, less one. What explains it: each phase's simulated seconds are replaced by
the real ones, one phase at a time; the phase with which most of the rounds' error goes
away stands on the assumption that is most wrong. What is ignored: that a phase which
begins at another instant meets others on shared links, so that shares of an error need
not sum to one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from simfed.ground.errors import InputError
from simfed.ground.units import counted, format_duration
from simfed.record.schema import HANDLING, HOST, PHASES
from simfed.report.comparison import ComparedPair, compare_sides, format_ratio, inverse
from simfed.report.reach import WHOLE_RUN, RunOutcome
from simfed.report.style import phase as look_of

if TYPE_CHECKING:
    from simfed.record.read import Run

_WORK = PHASES[:4]
_PARTS = ("download", "training", "compression", "upload", HOST)
_COLUMNS = dict(zip((*_WORK, "host_s"), _PARTS, strict=True))
"""Column of a participation's seconds → phase."""
_ROLES = "the simulation", "reality"

ASSUMPTIONS = {
    "download": "how models come down: capacities, latency and sharing of links",
    "training": "how long training takes: the device profile, `speed` and noise",
    "compression": "how long compression takes: the device profile",
    "upload": "how uploads go up: capacities, latency and sharing of links, their true "
    "size",
    HOST: "what hosts do beside the phases (serialising, waking up): no time, unless a "
    "profile knows of `handling`",
    "server": "the server's work: without `server.device` it takes no simulated time",
}
"""The assumption behind each part of a simulated round."""


@dataclass(frozen=True)
class Fidelity:
    """A simulation held against reality."""

    phases: pd.DataFrame
    """`phase, simulated_s, real_s, error, share`: means per participation, and the
    share of a participation's real time."""
    clients: pd.DataFrame
    """`client, simulated_s, real_s, error`: mean time from start to arrival."""
    rounds: pd.DataFrame
    """`round, simulated_s, real_s, error, simulated_straggler, real_straggler`."""
    makespan_s: tuple[float, float]
    """Simulated, real: of the matched rounds."""
    lengths: ComparedPair
    """Simulated and real seconds, round by round, as if rounds were independent of each
    other."""
    explanations: pd.DataFrame
    """`phase, assumption, explained`: share of the error that goes with it, largest
    first."""
    same_choices: float
    """Share of matched participations with the same strategy."""
    names: tuple[str, str] | None = None
    """The names of the two runs; None: they are a simulation and its deployment."""

    @property
    def heads(self) -> tuple[str, str]:
        """The heads of their columns."""
        return self.names or ("simulated", "real")

    @property
    def makespan_error(self) -> float:
        """Simulated / real − 1 of the time from the first start to the last end."""
        return _compute_error(*self.makespan_s)

    @property
    def round_error(self) -> float:
        """The median of the rounds' absolute relative errors."""
        return float(self.rounds["error"].abs().median())

    @property
    def named_right(self) -> float:
        """The share of real stragglers that the simulation names too.

        NaN where reality names none.
        """
        named = self.rounds.dropna(subset="real_straggler")
        same = named["simulated_straggler"] == named["real_straggler"]
        return float(same.fillna(False).astype(float).mean())

    @property
    def most_common(self) -> float:
        """The share of rounds of the most common real straggler.

        A constant guess gets it.
        """
        shares = self.rounds["real_straggler"].value_counts(normalize=True)
        return float(shares.iloc[0]) if len(shares) else 0.0

    def beyond(self, bound: float) -> list[str]:
        """Return what is further off than the bound, one sentence each."""
        errors = {"makespan": self.makespan_error, "median round": self.round_error}
        return [
            f"the {name} is {abs(error):.1%} off, beyond the bound of {bound:.1%}"
            for name, error in errors.items()
            if not abs(error) <= bound
        ]

    def sentences(self) -> Iterator[str]:
        """Yield what the errors come to, a sentence each.

        The last names the phase behind most.
        """
        whole = zip(self.heads, map(format_duration, self.makespan_s), strict=True)
        yield (
            f"{counted(len(self.rounds), 'round')}: {', '.join(map(' '.join, whole))} "
            f"({self.makespan_error:+.1%}); the median round is "
            f"{self.round_error:.1%} off"
        )
        first, second = self.names or _ROLES
        paired = self.lengths.paired
        if paired.clear:
            ratio = paired.ratio if paired.clear > 0 else inverse(paired.ratio)
            ahead, other = (self.lengths.a, self.lengths.b)[:: paired.clear]
            times = format_ratio(ratio, paired.confidence)
            yield f"rounds of {ahead} end {times} sooner than those of {other}"
        else:
            yield (
                f"no clear difference between the rounds of {first} and those of "
                f"{second}"
            )
        if self.rounds["real_straggler"].notna().any():
            yield (
                f"straggler named as in {second} in {self.named_right:.0%} of the "
                f"rounds that have one (the most common has {self.most_common:.0%})"
            )
        else:
            yield f"no round of {second} names a straggler"
        if self.same_choices < 1:
            yield f"the same strategy in {self.same_choices:.0%} of the participations"
        best = self.explanations.iloc[0]
        if best["explained"] > 0.05:
            yield (
                f"most of the error goes with {look_of(str(best['phase'])).label} "
                f"({best['explained']:.0%}): {best['assumption']}"
            )
        else:
            yield "no one phase explains the error"


def fidelity(
    simulated: Run, real: Run, names: tuple[str, str] | None = None
) -> Fidelity:
    """Return the errors of a simulation against a deployment, or of two runs.

    Args:
        simulated: the one whose errors are found.
        real: what it is held against.
        names: those of two runs; None: they are a simulation and its deployment.

    Raises:
        InputError: the runs have no common round, or no common participation.
    """
    ours, theirs = _select_participations(simulated), _select_participations(real)
    both = ours.merge(theirs, on=["round", "client", "turn"], suffixes=("", "_real"))
    rounds = _compare_rounds(simulated, real)
    if both.empty or rounds.empty:
        raise InputError(
            "two runs of the same clients with one",
            where="compare",
            problem="the runs have no round in common",
        )
    sides = [
        (
            name,
            {
                i: RunOutcome({WHOLE_RUN: (s, True)}, np.nan)
                for i, s in rounds[column].items()
            },
        )
        for name, column in zip(names or _ROLES, ("simulated_s", "real_s"), strict=True)
    ]
    (lengths,) = compare_sides(sides, [WHOLE_RUN])
    return Fidelity(
        phases=_compare_phases(both),
        clients=_compare_clients(both),
        rounds=rounds,
        makespan_s=(float(rounds["simulated_s"].sum()), float(rounds["real_s"].sum())),
        lengths=lengths,
        explanations=_explain_error(both, rounds, _is_synchronous(real)),
        same_choices=float((both["arm"] == both["arm_real"]).mean()),
        names=names,
    )


def _select_participations(run: Run) -> pd.DataFrame:
    """Return participations that arrived, with turns and time of no phase."""
    rows = run.participations.sort_values(["round", "client", "started_at_s"])
    rows = rows.assign(turn=rows.groupby(["round", "client"]).cumcount())
    told_s = rows[list(PHASES)].sum(axis=1)
    host_s = (rows["finished_at_s"] - rows["started_at_s"] - told_s).clip(lower=0.0)
    if run.manifest.get("mode") != "deployed":
        host_s = _find_handling_s(run, rows)  # which is local work there
        rows = rows.assign(training_s=rows["training_s"] - host_s)
    rows = rows.assign(host_s=host_s, elapsed_s=rows[list(_WORK)].sum(axis=1) + host_s)
    arrived = rows["outcome"].isin(("aggregated", "late"))
    columns = ["round", "client", "turn", "arm", *_WORK, "host_s", "elapsed_s"]
    return rows.loc[arrived, columns]


def _find_handling_s(run: Run, rows: pd.DataFrame) -> pd.Series:
    """Return seconds of simulated handling of messages in each participation.

    Args:
        run: a simulated one.
        rows: its participations, with their turns.
    """
    spans = run.spans
    spans = spans[(spans["kind"] == HANDLING) & spans["client"].notna()]
    key = ["round", "client", "turn"]
    spans = spans.sort_values(["round", "client", "started_at_s"])
    spans = spans.assign(
        turn=spans.groupby(["round", "client"]).cumcount(),
        handling_s=spans["finished_at_s"] - spans["started_at_s"],
    )
    matched = rows[key].merge(spans[[*key, "handling_s"]], on=key, how="left")
    return matched["handling_s"].fillna(0.0).set_axis(rows.index)


def _compare_rounds(simulated: Run, real: Run) -> pd.DataFrame:
    columns = ["round", "duration_s", "server_s", "critical_client"]
    both = simulated.rounds[columns].merge(
        real.rounds[columns], on="round", suffixes=("_simulated", "_real")
    )
    return pd.DataFrame(
        {
            "round": both["round"],
            "simulated_s": both["duration_s_simulated"],
            "real_s": both["duration_s_real"],
            "error": _compute_errors(
                both["duration_s_simulated"], both["duration_s_real"]
            ),
            "simulated_straggler": both["critical_client_simulated"].astype("Int64"),
            "real_straggler": both["critical_client_real"].astype("Int64"),
            "simulated_server_s": both["server_s_simulated"],
            "real_server_s": both["server_s_real"],
        }
    )


def _compare_phases(both: pd.DataFrame) -> pd.DataFrame:
    whole_s = both["elapsed_s_real"].sum()
    rows = []
    for column, name in _COLUMNS.items():
        ours, theirs = both[column], both[f"{column}_real"]
        share = theirs.sum() / whole_s if whole_s else 0.0
        rows.append(
            (
                name,
                ours.mean(),
                theirs.mean(),
                _compute_error(ours.mean(), theirs.mean()),
                share,
            )
        )
    return pd.DataFrame(
        rows, columns=["phase", "simulated_s", "real_s", "error", "share"]
    )


def _compare_clients(both: pd.DataFrame) -> pd.DataFrame:
    means = both.groupby("client")[["elapsed_s", "elapsed_s_real"]].mean().reset_index()
    means.columns = pd.Index(["client", "simulated_s", "real_s"])
    return means.assign(error=_compute_errors(means["simulated_s"], means["real_s"]))


def _explain_error(
    both: pd.DataFrame, rounds: pd.DataFrame, together: bool
) -> pd.DataFrame:
    """Return the share of the rounds' error that goes with each phase.

    Args:
        both: matched participations.
        rounds: matched rounds.
        together: a round ends with the slowest, and the server's work comes after it.
    """

    def length_s(elapsed_s: pd.Series, server_s: pd.Series) -> pd.Series:
        if not together:
            return elapsed_s
        return elapsed_s.groupby(both["round"]).max() + server_s

    indexed = rounds.set_index("round")
    ours_s, theirs_s = indexed["simulated_server_s"], indexed["real_server_s"]
    real_s = length_s(both["elapsed_s_real"], theirs_s)

    def error_s(elapsed_s: pd.Series, server_s: pd.Series = ours_s) -> float:
        return float((length_s(elapsed_s, server_s) - real_s).abs().sum())

    whole_s = error_s(both["elapsed_s"])
    left_s = {
        name: error_s(both["elapsed_s"] - both[column] + both[f"{column}_real"])
        for column, name in _COLUMNS.items()
    }
    if together:
        left_s["server"] = error_s(both["elapsed_s"], theirs_s)
    rows = [
        (name, ASSUMPTIONS[name], 1 - seconds / whole_s if whole_s else 0.0)
        for name, seconds in left_s.items()
    ]
    parts = pd.DataFrame(rows, columns=["phase", "assumption", "explained"])
    return parts.sort_values("explained", ascending=False, kind="stable").reset_index(
        drop=True
    )


def _is_synchronous(run: Run) -> bool:
    mode = (run.scenario.get("aggregation") or {}).get("mode", "synchronous")
    return bool(mode == "synchronous")


def _compute_error(ours: float, theirs: float) -> float:
    return ours / theirs - 1 if theirs else (0.0 if not ours else np.inf)


def _compute_errors(ours: pd.Series, theirs: pd.Series) -> pd.Series:
    return pd.Series(
        [_compute_error(a, b) for a, b in zip(ours, theirs, strict=True)],
        index=ours.index,
    )
