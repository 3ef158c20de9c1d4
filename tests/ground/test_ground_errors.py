"""One sentence: where, what is allowed, what was found, a hint.

And it survives a process border.
"""

import pickle

import pytest
import simpy

from simfed import InputError, InputErrors, RunFailed
from simfed.ground.errors import unwrap_error


def test_the_sentence():
    error = InputError("a number above 0", where="rate", got=-1, hint="why not 1?")
    sentence = "rate: got -1, expected a number above 0 (why not 1?)"
    assert str(error) == sentence
    assert str(error.within("a.yaml")) == f"a.yaml: {sentence}"
    assert str(InputError("a number", got=None)) == "got None, expected a number"
    assert str(InputError("a number")) == "expected a number"
    missing = InputError(where="a.yaml", problem="no such file")
    assert str(missing) == "a.yaml: no such file"


def test_errors_cross_processes():
    error = pickle.loads(pickle.dumps(InputError("a", where="b", got="c", hint="d")))
    assert (error.allowed, error.where, error.got, error.hint) == ("a", "b", "c", "d")
    several = pickle.loads(pickle.dumps(InputErrors([error, error])))
    assert str(several).count("\n") == 1
    assert several.exit_code == 2


def test_what_a_process_raised_is_not_behind_itself():
    """Whoever follows what is behind an error comes to an end."""
    env = simpy.Environment()

    def breaks():
        yield env.timeout(1.0)
        raise RunFailed("it broke")

    def run():
        try:
            env.run()
        except RunFailed as error:
            raise unwrap_error(error) from None

    env.process(breaks())
    with pytest.raises(RunFailed) as raised:
        run()
    behind = [raised.value]
    while behind[-1] is not None and len(behind) < 9:
        behind.append(behind[-1].__cause__ or behind[-1].__context__)
    assert len(behind) < 9
