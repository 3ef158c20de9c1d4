"""RESULTS.md and figures from made-up results, and a real run made compact."""

import json
import re

import pytest
import yaml
from analysis_made_up import ANALYSIS, ARMS, facts
from campaign import PHASES, STUDIES, campaign, collect, run_hash, work_off
from figures import COLOURS, FIGURES
from pictures import PICTURES
from report import appendix_text, campaign_results, results_text, write_report
from results import POLICIES, Results

import simfed.experiment.checks
from simfed.ground.errors import InputError
from simfed.record.digest import digest_value
from simfed.study import plan_study


def some_runs():
    plays = {"top-k": 60, "random-k": 20, "periodic-k": 20}
    return [
        facts(
            policy,
            seed,
            final=0.9 + 0.01 * seed,
            plays=plays if policy in ("ascend", "exp3") else None,
        )
        for policy in POLICIES
        for seed in range(3)
    ]


@pytest.mark.long
def test_the_report_is_the_same_for_the_same_results(keep, tmp_path):
    folder = keep(*some_runs())
    write_report(folder, tmp_path / "a")
    write_report(folder, tmp_path / "b")
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*.*"))
    assert len(files) > 3
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.long
def test_the_report_says_what_there_is_and_is_not(keep, tmp_path):
    write_report(keep(*some_runs()), tmp_path)
    text = (tmp_path / "RESULTS.md").read_text()
    assert "**So far:** 15 of 535 distinct runs (72 need a GPU); of 25 claims:" in text
    assert "| not run |" in text
    assert "cannot be told 8" in text
    assert "not run 15, not comparable 2" in text
    text = (tmp_path / "RESULTS-appendix.md").read_text()
    drawn = "with fewer than 5 every seed is drawn, and no interval"
    assert f"Mean over 3 seeds; {drawn}; 15 of 25 runs" in text  # MNIST by prototype
    assert "Not run: 0 of 45 runs." in text  # CIFAR-10
    assert "| **everything, each run once** | 15 | 15 | 0 | 900 s | 1,800 s |" in text
    assert "| k-1000 | mnist-k | 15 of 25 |" in text
    for one in Results(tmp_path / "results").all:
        assert f"`{one.hash}`" in text
    both = (tmp_path / "RESULTS.md").read_text() + text
    for figure in re.findall(r"!\[[^]]*\]\(([^)]*)\)", both):
        assert (tmp_path / figure).is_file()


def test_an_empty_folder_makes_a_page_without_figures(tmp_path):
    (tmp_path / "results").mkdir()
    write_report(tmp_path / "results", tmp_path)
    text = (tmp_path / "RESULTS.md").read_text()
    assert "**So far:** 0 of 535" in text
    assert "![" not in text


def test_foreign_runs_are_named_and_code_that_nobody_noted_is_said(keep):
    unknown = facts("random-k", 0)
    unknown["made_with"]["code"] = None
    folder = keep(facts("top-k", 0), unknown, facts("top-k", 0, k=123))
    text = results_text(campaign_results(folder))
    assert "2 of 535 distinct runs (72 need a GPU), 1 by code that was not noted;" in text
    assert re.search(r"Left out, as no run of the campaign: `[0-9a-f]{16}`\.", text)


def test_a_first_screen_has_a_line_per_claim(keep):
    text = results_text(Results(keep(*some_runs())))
    first = text[: text.index("## In other universes")].splitlines()
    rows = [line for line in first if line.startswith("| ")][2:]
    assert len(rows) == 25
    assert len(first) < 60
    assert "| 3 of 5 |" in next(row for row in rows if "LeNet5-half chooses" in row)


def test_a_panel_without_runs_is_named_and_not_drawn(keep):
    results = Results(keep(*(facts("ascend", s, k=5000) for s in range(2))))
    (spec,) = [figure for figure in FIGURES if figure.name == "mnist-large-k"]
    assert spec.caption(results).endswith("; 2 of 50 runs; not run: K = 10,000")
    assert [ax.get_title() for ax in spec.draw(spec, results).axes] == ["K = 5,000", ""]


@pytest.mark.parametrize(
    ("seeds", "caption"),
    [
        (1, "single seeds, so no band"),
        (3, "mean over 3 seeds; with fewer"),
        (5, "mean and 95 % t interval over 5 seeds; 25"),
    ],
)
def test_captions_say_what_is_drawn(keep, seeds, caption):
    results = Results(
        keep(*(facts(p, s, final=0.9 + 0.01 * s) for p in POLICIES for s in range(seeds)))
    )
    (spec,) = [figure for figure in FIGURES if figure.name == "mnist-prototypes"]
    assert spec.caption(results).startswith(caption)
    axes = spec.draw(spec, results).axes
    bands = [len(ax.collections) for ax in axes]
    assert bands == [5 * (seeds >= 5)] * 4
    lines = 5 * (1 + seeds * (1 < seeds < 5))
    marks = [sum(line.get_linestyle() == "None" for line in ax.lines) for ax in axes]
    assert marks == [5 * seeds] * 4  # each run's few evaluations
    assert [len(ax.lines) - n for ax, n in zip(axes, marks, strict=True)] == [lines] * 4
    for ax in axes[2:]:  # the last part
        low, high = ax.get_ylim()
        assert low > 80
        assert high <= 100


def test_a_reason_is_printed_where_a_comparison_fails_and_nowhere_else(keep):
    def row(top_k_share):
        rest = (100 - top_k_share) // 2
        plays = {"top-k": top_k_share, "random-k": rest, "periodic-k": rest}
        runs = [facts("ascend", s, plays=plays) for s in range(5)]
        runs += [
            facts(arm, s, final=0.95 if arm == "top-k" else 0.9) for arm in ARMS for s in range(5)
        ]
        results = Results(keep(*runs))
        return [
            next(line for line in page.splitlines() if line.startswith("| LeNet5 chooses evenly"))
            for page in (results_text(results), appendix_text(results))
        ]

    first, second = row(70)
    assert "**fails**" in first
    assert "LeNet5 plays Top-K in 70.0 %" in second
    first, second = row(40)
    assert "**holds**" in first
    assert "plays" not in second


def test_bars_end_where_shares_do(keep):
    """Four seeds of 100 % and one of 60: Student's interval would go on to 114."""
    plays = [{"top-k": 60, "random-k": 40}, *[{"top-k": 100}] * 4]
    results = Results(keep(*(facts("ascend", s, plays=plays[s]) for s in range(5))))
    (spec,) = [figure for figure in FIGURES if figure.name == "mnist-selection"]
    (ax,) = [a for a in spec.draw(spec, results).axes if a.get_title() == "LeNet5, K = 1,000"]
    ends = [y for bars in ax.collections for path in bars.get_paths() for y in path.vertices[:, 1]]
    half = 2.776445 * 40 / 5  # t(0.975, 4) · sd / √5
    assert sorted(ends) == pytest.approx([0, 0, 0, 8 + half, 92 - half, 100], abs=1e-3)


def test_every_policy_has_one_colour():
    assert len(set(COLOURS.values())) == len(POLICIES) == 5


@pytest.mark.long
def test_what_is_committed_regenerates():
    """RESULTS.md and its appendix are those of the compact results beside it."""
    results = campaign_results(ANALYSIS / "paper" / "runs")
    assert results.foreign == []
    drawn = [name for name in PICTURES if (ANALYSIS / "figures" / f"{name}.png").is_file()]
    assert results_text(results, drawn) == (ANALYSIS / "RESULTS.md").read_text()
    assert appendix_text(results, drawn) == (ANALYSIS / "RESULTS-appendix.md").read_text()
    for figure in FIGURES:
        drawn = (ANALYSIS / "figures" / f"{figure.name}.png").is_file()
        assert drawn == bool(figure.runs(results))


# --- the campaign ------------------------------------------------------------------------------


STUDY_FILES = sorted(p for p in STUDIES.glob("*.yaml") if "base" in yaml.safe_load(p.read_text()))


@pytest.mark.parametrize("path", STUDY_FILES, ids=lambda p: p.stem)
def test_studies_expand_into_scenarios_that_can_be_built(path):
    plan = plan_study(path)
    assert len(plan.runs) >= 5
    head = path.read_text()
    assert head.startswith("# Question:")
    assert "\n# Expected:" in head
    assert "\n# Runs in:" in head
    for run in plan.runs[: len(plan.runs) // len(plan.seeds)]:
        warnings = simfed.experiment.checks.check(run.scenario, source=plan.study.base)
        assert all(
            re.search("k = 1[06]000 is extrapolated|measured on", warning) for warning in warnings
        )
        assert not run.scenario.charge.downlink
        assert not run.scenario.charge.buffers
        assert run.scenario.server.device is None


def test_every_study_is_in_the_campaign_and_no_run_twice():
    planned = campaign()
    assert {phase.study for phase in PHASES} == {path.stem for path in STUDY_FILES}
    assert len({p.hash for p in planned}) == len(planned)
    all_runs = {run_hash(run.scenario) for path in STUDY_FILES for run in plan_study(path).runs}
    assert {p.hash for p in planned} == all_runs
    assert {p.phase.name for p in planned[:25]} == {"k-1000"}
    assert [p.run.seed for p in planned[:25]] == sorted([*range(5)] * 5)


def test_figures_ask_for_runs_that_the_campaign_makes(keep, planned_hashes):
    """Each planned run, made up, is found by some figure; none asks for more."""
    made = []
    for _, setting, seed, models in planned_hashes.values():
        changes = {name: value for name, value in setting.items() if name != "policy"}
        made.append(facts(setting["policy"], seed, models=models, **changes))
    results = campaign_results(keep(*made))
    assert len(results.all) == len(made) == len(campaign())
    shown = {run.hash for figure in FIGURES for run in figure.runs(results)}
    beside = ("multiverse", "safeguard", "dense")
    of_figures = {p.hash for p in campaign() if not p.phase.name.startswith(beside)}
    assert shown == of_figures
    for figure in FIGURES:
        assert len(figure.runs(results)) == figure.planned


@pytest.fixture
def tiny_studies(tmp_path, monkeypatch):
    """The MNIST studies on a tiny scenario: 4 rounds of the embedded digits."""
    import campaign

    folder = tmp_path / "paper"
    folder.mkdir()
    base = yaml.safe_load((STUDIES / "mnist.yaml").read_text())
    base |= {"rounds": 4, "evaluation": {"every": 2}}
    base["dataset"] |= {"name": "mnist-mini", "public": 32}
    profile = (ANALYSIS.parent / "calibration" / "rtx3090-ryzen4800h.yaml").read_text()
    (folder / "rtx3090-ryzen4800h.yaml").write_text(profile)
    (folder / "mnist.yaml").write_text(yaml.safe_dump(base))
    (folder / "mnist-k.yaml").write_text((STUDIES / "mnist-k.yaml").read_text())
    monkeypatch.setattr(campaign, "STUDIES", folder)
    monkeypatch.setenv("SIMFED_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.mark.long
def test_a_campaign_goes_on_where_it_stands(tiny_studies, tmp_path):
    phases = [phase for phase in PHASES if phase.name == "k-1000"]
    said = []

    def go_on(most, study="study"):
        said.clear()
        return work_off(
            tmp_path / study, tmp_path / "kept", phases=phases, jobs=1, most=most, say=said.append
        )

    assert go_on(2) == 2
    first = {p.name: p.read_bytes() for p in (tmp_path / "kept").glob("*.json")}
    assert len(first) == 2
    assert {json.loads(text)["setting"]["policy"] for text in first.values()} == {
        "top-k",
        "random-k",
    }
    assert go_on(1, study="elsewhere") == 1  # run directories may be gone: results count
    results = {p.name: p.read_bytes() for p in (tmp_path / "kept").glob("*.json")}
    # a run's directory has the hash that was planned
    assert set(results) == {f"{planned.hash}.json" for planned in campaign(phases)[:3]}
    assert first.items() <= results.items()
    assert collect(tmp_path / "study", tmp_path / "kept") == []
    one = json.loads(next(iter(first.values())))
    run = simfed.load_run(tmp_path / "study" / "runs" / one["address"])
    assert one["fingerprint"] == run.fingerprint
    assert one["curve"]["round"] == [2, 4]
    assert one["cost"]["cpu_s"] > 0
    assert one["cost"]["learning"] == "computed"
    assert re.fullmatch("[0-9a-f]+", one["made_with"]["code"])
    profile = (tiny_studies / "rtx3090-ryzen4800h.yaml").read_text()
    assert one["made_with"]["device_profiles"] == {"rtx3090-ryzen4800h": digest_value(profile)[:16]}
    # a run of which nobody noted the code is not said to be of the code that collects it
    (tmp_path / "study" / "runs" / one["address"] / "cost.json").unlink()
    (tmp_path / "kept" / f"{one['hash']}.json").unlink()
    assert collect(tmp_path / "study", tmp_path / "kept") == [one["hash"]]
    again = json.loads((tmp_path / "kept" / f"{one['hash']}.json").read_text())
    assert again["made_with"]["code"] is None
    assert again["curve"] == one["curve"]
    assert max(map(len, first.values())) < 8192
    ends = run.summary["accuracy"]["mean"]["final"]
    result = next(r for r in Results(tmp_path / "kept").all if r.hash == one["hash"])
    assert result.accuracies()[-1] == pytest.approx(ends, abs=1e-4)


def test_only_a_studys_folder_is_collected(tmp_path):
    with pytest.raises(InputError, match=r"a study's folder"):
        collect(tmp_path, tmp_path / "kept")
