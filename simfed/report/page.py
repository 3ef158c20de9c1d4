"""The HTML report: one self-contained file about one run, or comparing several.

The page needs no network and no server: the plotting library (plotly.js, from the
plotly package), the data and the code are inside, the first two compressed. A Content
Security Policy of its own lets only its own scripts run, by their hashes, and forbids
every request.

`build_page` asks `_Content` for each section: figures come from `panels.py`, tables
from `compare.py`, the data of the Gantt from `gantt_data.py`. `render_page` puts
sections into the template `assets/page.html`; studies and deployments make pages of
their own with it, and `simfed explore` extends the template.
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
    """A section of a page, with what there is of these; empty: it is left out."""

    title: str
    """Its heading, and its name in the navigation."""
    timelines: Sequence[str]
    """Labels of the runs whose timelines are charts, each below the other; empty: the
    page's switch chooses."""
    facts: Sequence[tuple[str, str, str]]
    """(what, value, in other words)."""
    warnings: Sequence[str]
    """Sentences of runs; many are folded."""
    panels: Sequence[Panel]
    pictures: Sequence[str]
    """SVG."""
    tables: Sequence[PanelTable]
    texts: Sequence[Mapping[str, str]]
    """`label, scenario, manifest` of a run, as it lies in its folder."""


def write_page(
    runs: Sequence[Run], path: str | os.PathLike[str], **options: Any
) -> Path:
    """Write the page of some runs to a file, and return its path.

    Args:
        runs: finished ones, at least one.
        path: of the file.
        options: those of `build_page`.

    Raises:
        InputError: without runs, and for a folder that cannot be written.
    """
    return put_output(path, build_page(runs, **options))


def build_page(
    runs: Sequence[Run],
    *,
    sections: Sequence[str] = SECTIONS,
    rounds: tuple[int, int] | None = None,
    capacities: Sequence[Mapping[str, frames.Steps]] = (),
) -> str:
    """Return the report of some runs as HTML.

    Several runs are compared: charts over one another, tables side by side.

    Args:
        runs: finished ones, at least one.
        sections: which parts of `SECTIONS` the page has; those about which the runs
            know nothing are left out.
        rounds: first and last round that the timeline shows at first (it can be
            changed in the page); None: a choice of the page's.
        capacities: for each run those of its links that vary, see `gantt_figure`.

    Raises:
        InputError: without runs.
    """
    if not runs:
        allowed, problem = "at least one run directory", "no run is named"
        raise InputError(allowed, where="simfed report", problem=problem)
    labels = frames.label_runs(runs)
    varies = dict(zip(labels, capacities, strict=False))
    content = _Content(dict(zip(labels, runs, strict=True)), varies)
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

    Args:
        runs: label → run.
    """
    content = _Content(dict(runs))
    return content.timeline(), content.timelines(None)


def render_page(
    title: str,
    subtitle: str,
    parts: Mapping[str, PageSection],
    timelines: Mapping[str, Any] | None = None,
    runs: Sequence[str] = (),
) -> str:
    """Return a page of these sections as HTML.

    Args:
        title: the page's heading.
        subtitle: the line below it.
        parts: a name for the section's address → the section; those without content
            are left out.
        timelines: what `gantt.js` draws; None: no section has a timeline.
        runs: labels among which one switch of the page chooses, for all charts that
            show one of them.
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
    """Return a panel's figures as `page.js` draws them, without a look of their own."""
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
    """The sections of a page about one run or several.

    Each method gives what its part of the template needs, or {} for nothing.
    """

    def __init__(
        self,
        runs: dict[str, Run],
        varies: Mapping[str, Mapping[str, frames.Steps]] | None = None,
    ) -> None:
        """Collect what several sections need: curves, measures, arms and words.

        Args:
            runs: label → run, in the page's order.
            varies: label → link → how its capacity steps; None: as recorded.

        Raises:
            InputError: where the runs are judged by different measures.
        """
        self.runs, self.varies = runs, varies or {}
        self.words = {label: explain_rounds(run.table) for label, run in runs.items()}
        kinds = {run.seconds for run in runs.values()}
        self.clock = f"{kinds.pop()} time" if len(kinds) == 1 else "time"
        self.tidy = pd.concat(
            [frames.curves(run, label) for label, run in runs.items()]
        )
        self.measure = find_common_measure(
            (run.measure for run in runs.values()), where="report"
        )
        self.arms = list(
            dict.fromkeys(arm for run in runs.values() for arm in frames.list_arms(run))
        )

    def overview(self) -> PageSection:
        """Return the facts of one run, or the tables that compare several."""
        several = len(self.runs) > 1
        section: PageSection = {"title": "Overview"}
        if several:
            section["tables"] = [
                compare.build_lead_table(self.runs, self.tidy),
                compare.build_settings_table(self.runs),
                compare.build_results_table(self.runs),
            ]
        else:
            section["facts"] = compare.list_headline_facts(*self.runs.values())
        section["warnings"] = [
            f"{label}: {text}" if several else str(text)
            for label, run in self.runs.items()
            for text in run.manifest.get("warnings", ())
        ]
        return section

    def learning(self) -> PageSection:
        """Return curves, when values were reached, and what was learned from whom."""
        names = {
            one.key: f"test {one.name}"
            for run in self.runs.values()
            for one in run.measures
        }
        names |= {"loss": "test loss", "kd_loss": "distillation loss"}
        y = {key: name for key, name in names.items() if self.tidy[key].notna().any()}
        if not y:
            return {}
        panel = panels.build_curves_panel(self.tidy, y, self.clock)
        tables = []
        if self.measure.key in y:
            tables.append(self._make_reached_table())
        header = ("run", "spent", "neighbours", "counted")
        private = {
            label: frames.describe_privacy(run) for label, run in self.runs.items()
        }
        if spent := [(label, *words) for label, words in private.items() if words]:
            tables.append(PanelTable("Privacy of what was learned", header, spent))
        tables += [
            build_owned_table(label, run.manifest["owned"])
            for label, run in self.runs.items()
            if "owned" in run.manifest
        ]
        return {"title": "Learning", "panels": [panel], "tables": tables}

    def _make_reached_table(self) -> PanelTable:
        """Return when thresholds were reached; of several runs side by side."""
        classes = count_classes(self.runs.values())
        wanted = choose_thresholds(self.tidy, classes=classes, measure=self.measure)
        reached = list_threshold_rows(self.tidy, wanted, self.measure)
        if len(self.runs) > 1:  # what is compared stands side by side
            name = frames.choose_headline(self.tidy)
            reached = reached.assign(other=reached["prototype"] != name).sort_values(
                ["other", "prototype", "threshold"],
                kind="stable",
                ascending=[True, True, self.measure.higher_is_better],
            )
        return compare.build_thresholds_table(reached, self.measure)

    def time(self) -> PageSection:
        """Return where clients' time went, and what rounds waited for."""
        seconds = {
            label: frames.order_prototypes(
                frames.sum_phase_seconds(run.participations, ["client", "prototype"]),
                run,
            )
            for label, run in self._find_runs_taken_part().items()
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
            tables = [
                compare.build_stragglers_table(self.runs),
                self._make_explanations(),
            ]
        return {"title": "Time", "panels": charts, "tables": tables} if charts else {}

    def _find_runs_taken_part(self) -> dict[str, Run]:
        """Return the runs in which anybody took part."""
        return {
            label: run for label, run in self.runs.items() if len(run.participations)
        }

    def _make_explanations(self) -> PanelTable:
        """Return the longest rounds of each run, with why they took as long."""
        longest = []
        for label, run in self.runs.items():
            rows = run.rounds.sort_values("duration_s", ascending=False, kind="stable")
            rows = rows.head(_WORDS // len(self.runs))
            said = [self.words[label].get(n, f"round {n}") for n in rows["round"]]
            longest.append(rows.assign(run=label, words=said))
        columns: panels.Columns = {
            "run": "run",
            "round": "words",
            "length": "duration_s",
            "shorter without this client": "saved_without_critical_s",
        }
        caption = "The longest rounds, in words"
        return panels.build_table(caption, pd.concat(longest), columns, (2, 3))

    def strategies(self) -> PageSection:
        """Return what was chosen over rounds and by whom, and K where it varies."""
        runs = self._find_runs_taken_part()
        charts = []
        levels = {label: frames.find_varying_k(run) for label, run in runs.items()}
        if levels := {label: k for label, k in levels.items() if len(k)}:
            charts.append(panels.build_quantile_panel("levels", levels, self.arms))
        if len(self.arms) < 2:  # no strategy was chosen
            return {"title": "Strategies", "panels": charts} if charts else {}
        shares, each, notes = {}, {}, []
        for label, run in runs.items():
            clients, some = frames.list_clients(run)["client"], run.participations
            played = frames.compute_arm_shares(some)
            shares[label] = frames.order_prototypes(played, run)
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
        """Return what policies were told, and what they believed."""
        charts = []
        rewards = {
            label: run.participations.dropna(subset=["reward"]).rename(
                columns={"reward": "value"}
            )
            for label, run in self.runs.items()
        }
        if rewards := {label: paid for label, paid in rewards.items() if len(paid)}:
            charts.append(panels.build_quantile_panel("rewards", rewards, self.arms))
        values = {
            label: run.policies.merge(frames.list_clients(run), on="client")
            for label, run in self.runs.items()
            if len(run.policies)
        }
        if values:
            told = dict.fromkeys(
                arm for frame in values.values() for arm in frame["arm"]
            )
            # codecs and levels apart
            order = [arm for arm in dict.fromkeys([*self.arms, *told]) if arm in told]
            charts.append(panels.build_quantile_panel("values", values, order))
        return {"title": "Rewards and utilities", "panels": charts} if charts else {}

    def timeline(self) -> PageSection:
        """Return the place of the Gantt, whose data is `timelines`."""
        labels = [label for label, run in self.runs.items() if len(run.rounds)]
        if not labels:
            return {}
        # a few runs stand below one another, on one scale; of more the page's switch
        # shows one
        shown = labels if 1 < len(labels) <= _TIMELINES else [""]
        return {"title": "Timeline", "timelines": shown}

    def timelines(self, rounds: tuple[int, int] | None) -> dict[str, Any]:
        """Return what `gantt.js` draws of all runs.

        Args:
            rounds: first and last that are shown at first; None: the page's choice.
        """
        runs = {label: run for label, run in self.runs.items() if len(run.rounds)}
        kinds = order_kinds(runs.values())
        return {
            "first": list(rounds) if rounds else None,
            "runs": [
                build_gantt_data(
                    run,
                    label,
                    self.words[label],
                    MOST_BARS // len(runs),
                    kinds,
                    self.arms,
                    self.varies.get(label),
                )
                for label, run in runs.items()
            ],
        }

    def links(self) -> PageSection:
        """Return how each run's links were used."""
        tables = [
            compare.build_links_table(
                label if len(self.runs) > 1 else "", frames.summarise_links(run)
            )
            for label, run in self.runs.items()
            if not run.links.empty
        ]
        return {"title": "Links", "tables": tables} if tables else {}

    def app(self) -> PageSection:
        """Return an app's own metrics, and the laws that priced its messages."""
        tables, pictures = [], []
        for label, run in self.runs.items():
            if rows := run.manifest.get("round_metrics"):
                tables.append(build_metrics_table(label, rows))
        for label, run in self.runs.items():
            if "laws" in run.manifest:
                card = run.manifest["laws"]
                tables.append(build_laws_table(label, card))
                pictures.append(render_svg(draw_laws_figure(card)))
        if not tables:
            return {}
        return {"title": "The app", "tables": tables, "pictures": pictures}

    def scenario(self) -> PageSection:
        """Return each run's files as texts, and tables that parts declared."""
        texts = [
            {
                "label": label,
                "scenario": run.scenario_yaml,
                "manifest": json.dumps(run.manifest, indent=2, ensure_ascii=False),
            }
            for label, run in self.runs.items()
        ]
        tables = [
            panels.build_columns_table(label, declared.title, run.table(name), name)
            for name, declared in TABLES.items()
            if declared.title
            for label, run in self.runs.items()
        ]
        told = [table for table in tables if table is not None]
        return {"title": "Scenario and manifest", "texts": texts, "tables": told}


def _drop_run_column(part: PageSection) -> PageSection:
    """Return a section's tables without the column of the run, for a page on one."""

    def without(table: PanelTable) -> PanelTable:
        places = range(table.header[0] == "run", len(table.header))
        return table.select(places)

    if not part:
        return part
    return {
        **part,
        "panels": [
            replace(panel, table=panel.table and without(panel.table))
            for panel in part.get("panels", ())
        ],
        "tables": [*map(without, part.get("tables", ()))],
    }


def _format_subtitle(runs: Sequence[Run]) -> str:
    """Return how many runs are compared, or the size, end and seed of one."""
    if len(runs) > 1:
        return f"{len(runs)} runs compared"
    (run,) = runs
    clients = sum(frames.count_clients(run).values())
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
    """Return a text as `page.js` inflates it: gzip, base64; the same bytes again."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@functools.cache
def read_asset(name: str) -> str:
    """Return the text of a file that pages are made of.

    Args:
        name: of a file in `simfed/report/assets`.
    """
    return (resources.files("simfed.report") / "assets" / name).read_text(
        encoding="utf-8"
    )


def join_scripts(*texts: str, main: str) -> str:
    """Return the page's code as one function, with more of it.

    Args:
        texts: further code, after `page.js` and `gantt.js`.
        main: the function of it that is called when all is there.
    """
    files = "\n".join([*map(read_asset, ("page.js", "gantt.js")), *texts])
    return f'"use strict";\n(() => {{\n{files}\nbegin({main});\n}})();\n'


@functools.cache
def read_plotly_script() -> str:
    """Return the code of the plotting library that the plotly package brings."""
    script = resources.files("plotly") / "package_data" / "plotly.min.js"
    return script.read_text(encoding="utf-8")


def load_template(name: str, read: Callable[[str], str] = read_asset) -> Any:
    """Return a template of pages, which writes names as text and no markup.

    Args:
        name: of its file.
        read: file → its text, of the template and of what it extends.

    Returns:
        A `jinja2.Template`; what it uses and is not given is an error.
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
