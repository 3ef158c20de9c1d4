"""How many entries a level comes to, and what arms are called."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed.compress.choice import Choice, list_choices
from simfed.compress.codec import check_level, codec_from_spec
from simfed.compress.selection import count_energy_entries, count_entries
from simfed.ground.errors import InputError
from simfed.ground.levels import Level
from simfed.ground.registry import registry

LEVELS = st.one_of(
    st.integers(1, 10**9).map(Level.read),
    st.floats(1e-6, 100).map(lambda share: Level.read(f"{share!r}%")),
    st.floats(1e-6, 1).map(Level.of_energy),
)


def smallest_k(values, share):
    """The definition: sort, add up, count."""
    squares = np.sort(values.astype(np.float64) ** 2)[::-1]
    total = np.cumsum(squares)
    return max(1, int(np.count_nonzero(total < share * total[-1])) + 1) if total[-1] else 1


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60),
    st.floats(0.01, 0.99),
)
def test_energy_entries_is_the_smallest_k_that_holds_the_share(numbers, share):
    values = np.array(numbers, np.float32)
    k = count_energy_entries(values, share)
    squares = np.sort(values.astype(np.float64) ** 2)[::-1]
    total = squares.sum()
    assert squares[:k].sum() >= share * total * (1 - 1e-12)
    assert k == 1 or squares[: k - 1].sum() < share * total * (1 + 1e-12)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_in_a_long_vector_too(share):
    values = np.random.default_rng(0).standard_t(2, 300_000).astype(np.float32)
    assert abs(count_energy_entries(values, share) - smallest_k(values, share)) <= 1


@pytest.mark.parametrize("share", [0.2, 0.9, 0.99])
@pytest.mark.parametrize("kind", ["normal", "equal", "sparse", "one spike", "growing"])
def test_in_a_long_vector_whatever_its_sample_says(kind, share):
    rng, n = np.random.default_rng(1), 200_001
    normal = rng.standard_normal(n).astype(np.float32)
    values = {
        "normal": normal,
        "equal": np.full(n, 0.5, np.float32),
        "sparse": np.where(rng.random(n) < 0.95, np.float32(0), normal),
        "one spike": np.where(np.arange(n) == 12_345, np.float32(1e4), normal),
        "growing": np.geomspace(1e-3, 1e3, n).astype(np.float32),
    }[kind]
    assert abs(count_energy_entries(values, share) - smallest_k(values, share)) <= 1


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_one_bad_entry_of_a_long_vector_is_found(wrong):
    values = np.ones(200_001, np.float32)
    values[77_777] = wrong
    with pytest.raises(InputError):
        count_energy_entries(values, 0.9)


def test_a_share_of_one_wants_all_that_is_not_zero():
    values = np.array([0.0, -2.0, 1e-30, 0.0, 3.0], np.float32)
    assert count_energy_entries(values, 1.0) == 3
    assert count_energy_entries(np.zeros(4, np.float32), 1.0) == 1
    assert count_energy_entries(np.zeros(4, np.float32), 0.5) == 1


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_energy_of_what_is_not_finite_is_refused(wrong):
    with pytest.raises(InputError):
        count_energy_entries(np.array([1.0, wrong], np.float32), 0.9)


def test_entries_for_a_tensor_are_those_of_its_array():
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    expected = count_energy_entries(values, 0.8)
    assert count_entries(torch.from_numpy(values), Level.of("energy:80%")) == expected
    assert count_entries(values, Level.of(7)) == 7
    with pytest.raises(InputError):
        count_entries(values, Level.of("80%"))


@given(LEVELS)
def test_an_arms_name_reads_back(level):
    choice = Choice("top-k+qsgd(4,bucket=64)", level)
    again = Choice.of(choice.label)
    assert again == choice
    assert (again.strategy, again.level) == (choice.strategy, level)


def test_levels_sort_by_how_much_they_keep():
    levels = map(Level.of, ["energy:99%", "10%", 1000, "2%", 50, "energy:5%"])
    ordered = [50, 1000, "2%", "10%", "energy:5%", "energy:99%"]
    assert [level.plain for level in sorted(levels, key=lambda level: level.order)] == ordered
    assert Level.of("energy:12.5%").energy == 0.125


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "0%", "101%", "x", "energy:0%", "energy:101%"])
def test_what_is_no_level_is_refused(wrong):
    with pytest.raises(InputError):
        Level.read(wrong)


TAKES_NO_K = {"dense", "qsgd", "terngrad", "ef-sign", "fp16", "bf16", "adacomp", "powersgd", "svd"}


@pytest.mark.parametrize("name", registry("codec").names())
def test_codecs_say_whether_k_changes_what_they_send(name):
    codec = codec_from_spec(name)
    assert codec.takes_k == (name not in TAKES_NO_K)
    update = np.random.default_rng(2).standard_normal(900).astype(np.float32)

    def sent(k):
        rng, layout = np.random.default_rng(3), [(30, 30)]
        payload, _ = codec.encode(update, None, rng, k, layout=layout)
        return np.count_nonzero(codec.decode(payload))

    if name == "dgc":  # its warm-up sends more than K
        return
    assert (sent(5) != sent(50)) == codec.takes_k


def test_chains_go_by_k_where_their_selection_does():
    assert codec_from_spec("random-k+fp16").takes_k
    assert not codec_from_spec("ef21(fp16)").takes_k
    assert codec_from_spec("top-k+qsgd(4)").takes_largest
    assert not codec_from_spec("random-k").takes_largest


def test_arms_are_strategies_times_levels_where_k_has_a_say():
    paired = list_choices(["random-k", "dense", "top-k@7"], [5, "1%"])
    assert list(map(str, paired)) == ["random-k@5", "random-k@1%", "dense", "top-k@7"]
    assert list_choices(["top-k", "dense"]) == (Choice("top-k"), Choice("dense"))


def test_a_level_that_does_not_suit_is_refused():
    with pytest.raises(InputError, match="does not go by a number of entries"):
        check_level(codec_from_spec("qsgd"), Level.of(5))
    with pytest.raises(InputError, match="top-k alone"):
        check_level(codec_from_spec("random-k"), Level.of("energy:90%"))
