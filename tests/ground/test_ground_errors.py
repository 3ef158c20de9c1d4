"""One sentence: where, what is allowed, what was found, a hint; and it survives a process
border."""

import pickle

from simfed.ground.errors import InputError, InputErrors, did_you_mean, listed


def test_the_sentence():
    error = InputError(
        "a number above 0", where="training.learning_rate", got=-1, hint="why not 1?"
    )
    assert str(error) == ("training.learning_rate: got -1, expected a number above 0 (why not 1?)")
    assert str(error.within("a.yaml")) == (
        "a.yaml: training.learning_rate: got -1, expected a number above 0 (why not 1?)"
    )
    assert str(InputError("a number", got=None)) == "got None, expected a number"
    assert str(InputError("a number")) == "expected a number"
    assert str(InputError(where="a.yaml", problem="no such file")) == "a.yaml: no such file"


def test_a_long_value_is_shortened():
    assert len(str(InputError("a number", got="x" * 10_000))) < 200


def test_errors_cross_processes():
    error = pickle.loads(pickle.dumps(InputError("a", where="b", got="c", hint="d")))
    assert (error.allowed, error.where, error.got, error.hint) == ("a", "b", "c", "d")
    several = pickle.loads(pickle.dumps(InputErrors([error, error])))
    assert str(several).count("\n") == 1
    assert several.exit_code == 2


def test_small_words():
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b or c"
    assert did_you_mean("zzz", ["top-k"]) is None
