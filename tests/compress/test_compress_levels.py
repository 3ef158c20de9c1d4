"""How many entries a level comes to, and what arms are called."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed import InputError
from simfed.compress import Choice, codec_from_spec, list_choices
from simfed.compress.codec import check_level
from simfed.ground.levels import Level
from simfed.ground.registry import registry

LEVELS = st.one_of(
    st.integers(1, 10**9).map(Level.read),
    st.floats(1e-6, 100).map(lambda share: Level.read(f"{share!r}%")),
)


@given(LEVELS)
def test_an_arms_name_reads_back(level):
    choice = Choice("top-k+qsgd(4,bucket=64)", level)
    assert Choice.of(choice.label) == choice


@pytest.mark.parametrize("name", registry("codec").names())
def test_codecs_say_whether_k_changes_what_they_send(name):
    codec = codec_from_spec(name)
    update = np.random.default_rng(2).standard_normal(900).astype(np.float32)

    def sent(k):
        rng, layout = np.random.default_rng(3), [(30, 30)]
        payload, _ = codec.encode(update, None, rng, k, layout=layout)
        return np.count_nonzero(codec.decode(payload))

    # the warm-up of dgc sends more than K
    assert codec.takes_k == (name == "dgc" or sent(5) != sent(50))


def test_chains_go_by_k_where_their_selection_does():
    assert codec_from_spec("random-k+fp16").takes_k
    assert not codec_from_spec("ef21(fp16)").takes_k


def test_arms_are_strategies_times_levels_where_k_has_a_say():
    paired = list_choices(["random-k", "dense", "top-k@7"], [5, "1%"])
    assert list(map(str, paired)) == ["random-k@5", "random-k@1%", "dense", "top-k@7"]
    assert list_choices(["top-k", "dense"]) == (Choice("top-k"), Choice("dense"))


def test_a_level_that_does_not_suit_is_refused():
    with pytest.raises(InputError, match="does not go by a number of entries"):
        check_level(codec_from_spec("qsgd"), Level.of(5))


def test_what_others_ask_of_a_label_a_choice_answers():
    choice = Choice.of("top-k+qsgd(4,bucket=64)@1%")
    assert (choice.strategy, str(choice.level)) == ("top-k+qsgd(4,bucket=64)", "1%")
    assert choice.links == ("top-k", "qsgd(4,bucket=64)")
    assert choice.bare == "top-k+qsgd"
    assert choice.names[:2] == ("top-k", "qsgd")
