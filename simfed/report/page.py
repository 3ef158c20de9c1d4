"""The HTML report: one self-contained file about one run, or comparing several.

The page needs no network and no server: the plotting library (plotly.js, from the
plotly package), the data and the code are inside, the first two compressed. A Content
Security Policy of its own lets only its own scripts run, by their hashes, and forbids
every request.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import pandas as pd
from plotly.utils import PlotlyJSONEncoder

from simfed.ground.errors import InputError
from simfed.ground.measure import find_common_measure
from simfed.ground.units import counted, format_bytes, format_duration
from simfed.ground.version import VERSION
from simfed.ground.writing import put_output
from simfed.record.schema import TABLES
from simfed.record.summary import count_classes, explain_rounds
from simfed.report import compare, frames, panels
from simfed.report.gantt_data import MOST_BARS, build_gantt_data, order_kinds
from simfed.report.laws import build_laws_table, build_metrics_table, draw_laws_figure
from simfed.report.owned import build_owned_table
from simfed.report.panels import Panel, PanelTable
from simfed.report.pictures import render_svg
from simfed.report.reach import choose_thresholds, list_threshold_rows

if TYPE_CHECKING:
    from simfed.record.read import Run

SECTIONS = (
    "overview",
    "learning",
    "time",
    "strategies",
    "rewards",
    "timeline",
    "links",
    "app",
    "scenario",
)
_CLIENT_ROWS = 200
"""Clients with a row of their own in the picture of what each chose."""
_TIMELINES = 3
"""Runs whose timelines stand on the page together."""
_WORDS = 30
"""Rounds explained in words in a table."""


class PageSection(TypedDict, total=False):
    """A section of a page, with what there is of these."""

    title: str
    timelines: Sequence[str]
    """Labels of the runs whose timelines are charts, each below the other; empty: the
    page's switch chooses."""
    facts: Sequence[tuple[str, str, str]]
    """(what, value, in other words)."""
    warnings: Sequence[str]
    panels: Sequence[Panel]
    pictures: Sequence[str]
    """SVG."""
    tables: Sequence[PanelTable]
    texts: Sequence[Mapping[str, str]]


def write_page(
    runs: Sequence[Run],
    path: str | os.PathLike[str],
    *,
    sections: Sequence[str] = SECTIONS,
    rounds: tuple[int, int] | None = None,
    capacities: Sequence[Mapping[str, frames.Steps]] = (),
) -> Path:
    """Write the page to a file; see `build_page`."""
    return put_output(
        path, build_page(runs, sections=sections, rounds=rounds, capacities=capacities)
    )


def build_page(
    runs: Sequence[Run],
    *,
    sections: Sequence[str] = SECTIONS,
    rounds: tuple[int, int] | None = None,
    capacities: Sequence[Mapping[str, frames.Steps]] = (),
) -> str:
    """Return the report of some runs as HTML.

    `sections`: which parts, of `SECTIONS`; `rounds`: first and last round that the
    timeline shows at first (it can be changed in the page); `capacities`: for each run
    those of its links that vary, see `gantt_figure`. Several runs are charts over one
    another and compared. Raises: `InputError` without runs.
    """
    if not runs:
        raise InputError(
            "at least one run directory",
            where="simfed report",
            problem="no run is named",
        )
    labels = frames.label_runs(runs)
    words = [explain_rounds(run.table) for run in runs]
    content = _Content(
        dict(zip(labels, runs, strict=True)), dict(zip(labels, words, strict=True))
    )
    content.varies = dict(zip(labels, capacities, strict=False))
    parts = {name: getattr(content, name)() for name in SECTIONS if name in sections}
    if len(runs) == 1:
        parts = {name: _drop_run_column(part) for name, part in parts.items()}
    timelines = content.timelines(rounds) if parts.get("timeline") else None
    switch = list(labels) if len(runs) > 1 else []
    more = f" and {len(labels) - 4} more" if len(labels) > 4 else ""
    return render_page(
        ", ".join(labels[:4]) + more, _format_subtitle(runs), parts, timelines, switch
    )


def build_timelines(runs: Mapping[str, Run]) -> tuple[PageSection, dict[str, Any]]:
    """Return a section with the timelines of some runs on one scale, and its data.

    Both are for `render_page`.
    """
    words = {label: explain_rounds(run.table) for label, run in runs.items()}
    content = _Content(dict(runs), words)
    return content.timeline(), content.timelines(None)


def render_page(
    title: str,
    subtitle: str,
    parts: Mapping[str, PageSection],
    timelines: Mapping[str, Any] | None = None,
    runs: Sequence[str] = (),
) -> str:
    """Return a page of these sections, each by a name for its address.

    `runs`: labels among which one switch of the page chooses, for all charts that show
    one of them. Sections without content are left out.
    """
    drawn = [panel for part in parts.values() for panel in part.get("panels", ())]
    specs = {panel.key: _describe_figures(panel) for panel in drawn}
    payload: dict[str, Any] = {"panels": specs, "runs": list(runs)}
    if timelines is not None:
        payload["timeline"] = timelines
    script, library = join_scripts(main="start"), read_plotly_script()
    text: str = load_template("page.html").render(
        title=title,
        subtitle=subtitle,
        parts={name: part for name, part in parts.items() if part},
        style=read_asset("page.css"),
        script=script,
        payload=_compress_text(
            json.dumps(payload, cls=PlotlyJSONEncoder, separators=(",", ":"))
        ),
        library=_compress_text(library),
        policy=_build_policy(script, library),
        version=VERSION,
        runs=list(runs),
    )
    return text


def _describe_figures(panel: Panel) -> dict[str, Any]:
    """Return a panel's figures as `page.js` draws them, in the page's own colours."""
    figures = []
    for key, figure in panel.figures.items():
        drawn = figure.to_dict()
        drawn["layout"].pop("template", None)
        # Plotly Express' room for a title
        if drawn["layout"].get("margin") == {"t": 60}:
            del drawn["layout"]["margin"]
        figures.append((key, drawn))
    return {"by": panel.by, "figures": figures}


class _Content:
    """The sections of a page.

    Each gives what its part of the template needs, or {} for nothing.
    """

    def __init__(self, runs: dict[str, Run], words: dict[str, dict[int, str]]) -> None:
        self.runs, self.words = runs, words
        kinds = {run.seconds for run in runs.values()}
        self.clock = f"{kinds.pop()} time" if len(kinds) == 1 else "time"
        self.varies: dict[str, Mapping[str, frames.Steps]] = {}
        self.tidy = pd.concat(
            [frames.curves(run, label) for label, run in runs.items()]
        )
        self.measure = find_common_measure(
            (run.measure for run in runs.values()), where="report"
        )
        self.measures = dict.fromkeys(
            one for run in runs.values() for one in run.measures
        )
        self.learned = bool(self.tidy[self.measure.key].notna().any())
        self.arms = list(
            dict.fromkeys(arm for run in runs.values() for arm in frames.list_arms(run))
        )

    def overview(self) -> PageSection:
        several = len(self.runs) > 1
        facts, tables = [], []
        if several:
            tables = [
                compare.build_lead_table(self.runs, self.tidy),
                compare.build_settings_table(self.runs),
                compare.build_results_table(self.runs),
            ]
        else:
            facts = compare.list_headline_facts(next(iter(self.runs.values())))
        warnings = [
            f"{label}: {text}" if several else str(text)
            for label, run in self.runs.items()
            for text in run.manifest.get("warnings", ())
        ]
        return {
            "title": "Overview",
            "facts": facts,
            "warnings": warnings,
            "tables": tables,
        }

    def learning(self) -> PageSection:
        y = {
            **{one.key: f"test {one.name}" for one in self.measures},
            "loss": "test loss",
            "kd_loss": "distillation loss",
        }
        y = {name: label for name, label in y.items() if self.tidy[name].notna().any()}
        if not y:
            return {}
        panel = panels.build_curves_panel(
            self.tidy,
            key="learning",
            title="Learning curves",
            y=y,
            clock=self.clock,
            about=(
                "Measured on the test set; the distillation loss is the students' "
                "distance from the clients' joint answer, before each step."
            ),
        )
        tables = []
        if self.learned:
            classes = count_classes(self.runs.values())
            wanted = choose_thresholds(self.tidy, classes=classes, measure=self.measure)
            reached = list_threshold_rows(self.tidy, wanted, self.measure)
            if len(self.runs) > 1:  # what is compared stands side by side
                name = frames.choose_headline(self.tidy)
                reached = reached.assign(other=reached["prototype"] != name)
                easiest_first = {
                    "ascending": [True, True, self.measure.higher_is_better]
                }
                by = ["other", "prototype", "threshold"]
                reached = reached.sort_values(by, kind="stable", **easiest_first)
            tables.append(compare.build_thresholds_table(reached, self.measure))
        private = {
            label: frames.describe_privacy(run) for label, run in self.runs.items()
        }
        if spent := [
            (label, *words) for label, words in private.items() if words is not None
        ]:
            header = ("run", "spent", "neighbours", "counted")
            tables.append(PanelTable("Privacy of what was learned", header, spent))
        tables += [
            build_owned_table(label, run.manifest["owned"])
            for label, run in self.runs.items()
            if "owned" in run.manifest
        ]
        return {"title": "Learning", "panels": [panel], "tables": tables}

    def time(self) -> PageSection:
        seconds = {
            label: frames.order_prototypes(
                frames.sum_phase_seconds(run.participations, ["client", "prototype"]),
                run,
            )
            for label, run in self.runs.items()
            if len(run.participations)
        }
        blamed = {
            label: (run.rounds, self.words[label])
            for label, run in self.runs.items()
            if run.rounds["critical_client"].notna().any()
        }
        charts = [panels.build_time_panel(seconds, self.clock)] if seconds else []
        tables: list[PanelTable] = []
        if blamed:
            charts.append(panels.build_round_length_panel(blamed))
            tables = [compare.build_stragglers_table(self.runs), self._explained()]
        return {"title": "Time", "panels": charts, "tables": tables} if charts else {}

    def strategies(self) -> PageSection:
        runs = {
            label: run for label, run in self.runs.items() if len(run.participations)
        }
        levels = {
            label: k
            for label, run in runs.items()
            if len(k := frames.find_varying_k(run))
        }
        charts = []
        if levels:
            about = (
                "K of each participation, where it is not the same for all: the median "
                "over participations, and the band that holds 80 % of them."
            )
            wording = {"title": "Entries kept", "about": about, "y_label": "K"}
            charts.append(
                panels.build_quantile_panel(levels, self.arms, key="levels", **wording)
            )
        if len(self.arms) < 2:  # no strategy was chosen
            return {"title": "Strategies", "panels": charts} if charts else {}
        shares = {
            label: frames.order_prototypes(
                frames.compute_arm_shares(run.participations), run
            )
            for label, run in runs.items()
        }
        each, notes = {}, []
        for label, run in runs.items():
            clients = frames.list_clients(run)["client"]
            some = run.participations
            if len(clients) > _CLIENT_ROWS:
                some = some[some["client"].isin(clients[:_CLIENT_ROWS])]
                notes.append(
                    f"{label}: the first {_CLIENT_ROWS} of {len(clients):,} clients."
                )
            bins = max(4, min(60, panels.MOST_CELLS // min(len(clients), _CLIENT_ROWS)))
            played = frames.compute_arm_shares(some, ["prototype", "client"], bins)
            each[label] = frames.order_prototypes(played, run)
        chosen = [
            panels.build_choice_share_panel(shares, self.arms),
            panels.build_client_choice_panel(each, self.arms, notes),
        ]
        return {"title": "Strategies", "panels": [*chosen, *charts]}

    def rewards(self) -> PageSection:
        rewards, values = {}, {}
        for label, run in self.runs.items():
            paid = run.participations.dropna(subset=["reward"])
            if len(paid):
                rewards[label] = paid.rename(columns={"reward": "value"})
            if len(run.policies):
                values[label] = run.policies.merge(
                    frames.list_clients(run), on="client"
                )
        charts = []
        if rewards:
            about = (
                "What the policies were told, by the strategy played: the median over "
                "participations, and the band that holds 80 % of them."
            )
            wording = {"title": "Rewards", "about": about, "y_label": "reward"}
            charts.append(
                panels.build_quantile_panel(
                    rewards, self.arms, key="rewards", **wording
                )
            )
        if values:
            believed = dict.fromkeys(
                arm for frame in values.values() for arm in frame["arm"]
            )
            order = [arm for arm in self.arms if arm in believed]
            # codecs and levels apart
            order += [arm for arm in believed if arm not in self.arms]
            about = (
                "Each client's estimate of each strategy before its pull (a "
                "probability where the policy works with probabilities): the median "
                "over clients, and the band that holds 80 % of them."
            )
            wording = {"title": "What the policies believed", "about": about}
            wording["y_label"] = "utility or probability"
            charts.append(
                panels.build_quantile_panel(values, order, key="values", **wording)
            )
        return {"title": "Rewards and utilities", "panels": charts} if charts else {}

    def timeline(self) -> PageSection:
        labels = [label for label, run in self.runs.items() if len(run.rounds)]
        if not labels:
            return {}
        # a few runs stand below one another, on one scale; of more the page's switch
        # shows one
        shown = labels if 1 < len(labels) <= _TIMELINES else [""]
        return {"title": "Timeline", "timelines": shown}

    def timelines(self, rounds: tuple[int, int] | None) -> dict[str, Any]:
        runs = {label: run for label, run in self.runs.items() if len(run.rounds)}
        budget = MOST_BARS // len(runs)
        kinds = order_kinds(runs.values())
        return {
            "first": list(rounds) if rounds else None,
            "runs": [
                build_gantt_data(
                    run,
                    label,
                    self.words[label],
                    budget,
                    kinds,
                    self.arms,
                    self.varies.get(label),
                )
                for label, run in runs.items()
            ],
        }

    def links(self) -> PageSection:
        several = len(self.runs) > 1
        tables = [
            compare.build_links_table(
                label if several else "", frames.summarise_links(run)
            )
            for label, run in self.runs.items()
            if not run.links.empty
        ]
        return {"title": "Links", "tables": tables} if tables else {}

    def app(self) -> PageSection:
        told = {
            label: run.manifest.get("round_metrics") for label, run in self.runs.items()
        }
        cards = {
            n: run.manifest["laws"]
            for n, run in self.runs.items()
            if "laws" in run.manifest
        }
        tables = [
            build_metrics_table(label, rows) for label, rows in told.items() if rows
        ]
        tables += [build_laws_table(label, card) for label, card in cards.items()]
        pictures = [render_svg(draw_laws_figure(card)) for card in cards.values()]
        return (
            {"title": "The app", "tables": tables, "pictures": pictures}
            if tables
            else {}
        )

    def scenario(self) -> PageSection:
        texts = [
            {
                "label": label,
                "scenario": run.scenario_yaml,
                "manifest": json.dumps(run.manifest, indent=2, ensure_ascii=False),
            }
            for label, run in self.runs.items()
        ]
        tables = [
            table
            for name, declared in TABLES.items()
            if declared.title
            for label, run in self.runs.items()
            if (
                table := panels.build_columns_table(
                    label, declared.title, run.table(name), name
                )
            )
        ]
        return {"title": "Scenario and manifest", "texts": texts, "tables": tables}

    def _explained(self) -> PanelTable:
        rows = []
        for label, run in self.runs.items():
            longest = run.rounds.sort_values(
                "duration_s", ascending=False, kind="stable"
            )
            for row in longest.head(_WORDS // len(self.runs)).itertuples():
                words = self.words[label].get(row.round, f"round {row.round}")
                saved = row.saved_without_critical_s
                rows.append(
                    (
                        label,
                        words,
                        format_duration(row.duration_s),
                        "" if pd.isna(saved) else format_duration(saved),
                    )
                )
        header = ("run", "round", "length", "shorter without this client")
        return PanelTable(
            "The longest rounds, in words", header, rows, frozenset({2, 3})
        )


def _drop_run_column(part: PageSection) -> PageSection:
    """Return a section's tables without the column of the run, for a page on one."""
    if not part:
        return part
    panels = [
        replace(panel, table=panel.table and _drop_run(panel.table))
        for panel in part.get("panels", ())
    ]
    return {
        **part,
        "panels": panels,
        "tables": [*map(_drop_run, part.get("tables", ()))],
    }


def _drop_run(table: PanelTable) -> PanelTable:
    if table.header[0] != "run":
        return table
    return replace(
        table,
        header=table.header[1:],
        rows=[row[1:] for row in table.rows],
        numeric=frozenset(i - 1 for i in table.numeric),
    )


def _format_subtitle(runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs compared"
    (run,) = runs
    clients = sum(group.get("count", 1) for group in run.scenario.get("clients", []))
    up, down = run.rounds["uplink_bytes"].sum(), run.rounds["downlink_bytes"].sum()
    end_s = run.rounds["finished_at_s"].max() if len(run.rounds) else 0
    words = [
        counted(clients, "client"),
        counted(len(run.rounds), "round"),
        f"{format_duration(end_s)} {run.seconds}",
        f"{format_bytes(up)} up and {format_bytes(down)} down",
        f"seed {run.manifest.get('seed', '?')}",
    ]
    return " · ".join(words)


def _build_policy(*scripts: str) -> str:
    """Return a Content Security Policy that runs these scripts and loads nothing."""
    hashes = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(
        f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes
    )
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )


@functools.cache  # of the library, that is: it takes most of a page's second
def _compress_text(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@functools.cache
def read_asset(name: str) -> str:
    """Return the text of a file that pages are made of."""
    return (resources.files("simfed.report") / "assets" / name).read_text(
        encoding="utf-8"
    )


def join_scripts(*texts: str, main: str) -> str:
    """Return the page's code with more of it, and what is called when all is there."""
    files = "\n".join([*map(read_asset, ("page.js", "gantt.js")), *texts])
    return f'"use strict";\n(() => {{\n{files}\nbegin({main});\n}})();\n'


@functools.cache
def read_plotly_script() -> str:
    """Return the plotting library's code."""
    script = resources.files("plotly") / "package_data" / "plotly.min.js"
    return script.read_text(encoding="utf-8")


def load_template(name: str, read: Callable[[str], str] = read_asset) -> Any:
    """Return a template of pages.

    `read` gives the text of it, and of what it extends.
    """
    import jinja2

    # autoescape: names of scenarios, prototypes and links are whatever somebody wrote
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)
