"""TUNED.md and the first lines of ANSWERS.md say what their rows say, as registered."""

import answers_first
import answers_tuned as tuned
import pytest
import yaml
from answers import compare_ways, times_of
from kept import read
from orders import holm


@pytest.fixture(scope="module")
def rows():
    return tuned.read_rows()


@pytest.fixture(scope="module")
def cells(rows):
    return list(tuned.cells_of(rows))


def test_studies_have_the_rates_that_other_seeds_chose():
    rates = {
        model: tuned.choose_rates(of_model)
        for model, of_model in read(tuned.RATES).groupby("model")
    }
    assert set(read(tuned.RATES)["seed"]) == {100, 101, 102}
    for file, model in (
        ("answers-tuned.yaml", tuned.LENET),
        ("answers-mixed.yaml", tuned.LENET),
        ("answers-larger.yaml", tuned.PERCEPTRON),
    ):
        arms = yaml.safe_load((tuned.STUDY_FILES / file).read_text())["list"]
        for arm, changes in arms.items():
            if "|" not in arm:
                assert changes["training.learning_rate"] == rates[model][arm], arm


def test_every_arm_was_played_in_every_cell_under_ten_seeds(cells):
    assert len(cells) == 12 + 1 + 3 + 4 + 8
    few = {tuned.PERCEPTRON: 6, tuned.RESNET: 7}
    for cell in cells:
        count = few.get(cell.model, 13 if cell.device else 16)
        assert cell.rows["arm"].nunique() == count
        assert set(cell.rows["seed"]) == set(range(200, 210))
        diverged = count * 10 - len(cell.rows)
        assert diverged <= (not cell.device)  # 8 bit | top-k@1%, momentum


def test_holm_is_over_all_that_was_registered(cells):
    claims = tuned.list_claims(cells)
    assert len(claims) == 4 * 28
    told = sum(holm([claim.p_value for claim in claims]))
    assert f"of 112 pairs {told} are told apart" in words_of(tuned.PAGE)


def words_of(page):
    return " ".join(page.read_text(encoding="utf-8").split())


def ratios(cells, first, second):
    """How many times sooner the first was, by cell."""
    return [
        compare_ways(times_of(cell.rows), first, second).ratio.least for cell in cells
    ]


def test_the_first_lines_of_the_answers_follow_from_the_rows(cells):
    lenet = [cell for cell in cells if cell.model == tuned.LENET]
    larger = {c.fleet: c for c in cells if c.model == tuned.PERCEPTRON}
    momentum = "dense" + tuned.MOMENTUM
    for those, gain in ((lenet, "1.3"), (larger.values(), "1.9")):
        assert {f"{one:.1f}" for one in ratios(those, momentum, "dense")} == {gain}
    alike = [cell for cell in lenet if cell.kind == "LeNet-5, alike devices"]
    fast = [cell for cell in alike if cell.fleet != "DSL"]
    tenth, eight = "top-k@10%" + tuned.MOMENTUM, "8 bit" + tuned.MOMENTUM
    first = [cell for cell in fast if cell.medians_s.index[0] == tenth]
    assert (len(first), len(fast)) == (8, 9)
    faster = [cell for cell in larger.values() if cell.fleet != "DSL"]
    assert all(cell.medians_s.index[0] == eight for cell in faster)
    slow = {c.device: c for c in alike if c.fleet == "DSL"}
    assert slow["Redmi Note 8"].medians_s.index[0] == tenth
    both = [slow[tuned.PI], slow["Tesla V100"]]
    told = [f"{gain:.1f}" for gain in ratios(both, tuned.DGC, "dense")]
    medians_s = [[c.medians_s[tuned.DGC], c.medians_s["dense"]] for c in both]
    took = (" s for ".join(map(tuned.seconds, pair)) for pair in medians_s)
    (shared,) = (cell for cell in lenet if cell.fleet == tuned.SHARED_LINE)
    more = ratios([shared, larger["DSL"]], tuned.DGC, "dense")
    spent = slow[tuned.PI].rows.eval("both = up_bytes + down_bytes")
    middle = spent.groupby("arm")[["up_bytes", "both"]].median()
    shares = 100 * middle / middle.loc["dense"]
    plain = ["8 bit", "sign", "top-k@10%", "top-k@3%", "top-k@1%"]
    gains = {True: [], False: []}
    for cell in alike:
        best = cell.medians_s[plain].idxmin()
        assert best in ("top-k@10%", "top-k@3%")
        gains[cell.fleet == "DSL"] += ratios([cell], best, "dense")
    page = words_of(answers_first.PAGE).partition("## What to use")[0]
    for said in (
        "was 1.3 times sooner at 93 %",
        "a perceptron's 1.9 times",
        "is first in eight of nine such cells",
        f"{span(ratios(first, tenth, 'dense'))} times sooner than dense: 16.6",
        f"take {span([cell.lag(eight) for cell in first], 2)} times as long there",
        f"links, {span(ratios(faster, eight, 'dense'))} times sooner",
        f"{' and '.join(told)} times sooner than dense on Raspberry Pi 5",
        f"({', '.join(took)})",
        f"{more[0]:.1f} times where ten share one line, {more[1]:.1f} times",
        f"uploads {shares['up_bytes'][tenth]:.0f} % of dense's bytes, and",
        f"moves {shares['both'][tenth]:.0f} % both ways",
        f"for {shares['up_bytes'][tuned.DGC]:.1f} % of dense's uploads and",
        f"{shares['both'][tuned.DGC]:.0f} % of its bytes both ways",
        f"{span(gains[False], 2)} times sooner than dense on fibre",
        f"{span(gains[True])} times on DSL",
    ):
        assert said in page


def span(values, digits=1):
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"
