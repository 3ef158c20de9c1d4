"""Parts that may differ never share a digest; equal ones do, in any process."""

import functools
import os
import subprocess
import sys

import pytest
import torch

from simfed.replay.parts import digest_part


def build(shape, classes, bias=0.0):
    return (shape, classes, bias)


def closed_over(bias):
    return lambda shape, classes: build(shape, classes, bias)


def by_default(bias):
    return lambda shape, classes, bias=bias: build(shape, classes, bias)


class Model:
    def __init__(self, bias):
        self.bias = bias

    def build(self, shape, classes):
        return build(shape, classes, self.bias)


class Deeper(Model):
    pass


MAKERS = {
    "partial": lambda bias: functools.partial(build, bias=bias),
    "nested partial": lambda bias: functools.partial(functools.partial(build, bias), 3),
    "closure": closed_over,
    "default": by_default,
    "object": Model,
    "method": lambda bias: Model(bias).build,
    "list in a closure": lambda bias: closed_over([1, {"a": bias}]),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_bound_values_count(kind):
    make = MAKERS[kind]
    assert digest_part(make(1.0)) == digest_part(make(1.0))
    assert digest_part(make(1.0)) != digest_part(make(2.0))
    assert digest_part(make(1)) != digest_part(make(True))


def test_names_in_one_file_differ():
    assert len({digest_part(part) for part in (Model, Deeper, build, closed_over)}) == 4


IMPORT = "from simfed.replay.parts import digest_part\n"


def say(script, *folders):
    """In a process of its own, as another day's run would."""
    path = os.pathsep.join([*map(str, folders), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", IMPORT + script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    ).stdout


def test_what_cannot_be_described_is_like_nothing_else():
    one, other = (closed_over(torch.zeros(2)) for _ in range(2))
    assert digest_part(one) != digest_part(other)
    typed = "class P: pass\nprint(digest_part(P))"
    assert say(typed) != say(typed)


def test_objects_that_hold_each_other_have_an_end():
    one, other = Model(0), Model(1)
    one.friend, other.friend = other, one
    assert digest_part(one) == digest_part(one)


def digest_elsewhere(folder):
    return say("import mine\nprint(digest_part(mine.Net))", folder)


def test_modules_of_the_users_count_as_far_as_they_are_used(tmp_path):
    files = {
        "mine.py": (
            "import numpy\nfrom helper import width\nclass Net(numpy.ndarray):\n    "
            "width = width\n"
        ),
        "helper.py": "import deep\ndef width():\n    return deep.WIDTH\n",
        "deep.py": "WIDTH = 3\n",
        "unused.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    first = digest_elsewhere(tmp_path)
    assert digest_elsewhere(tmp_path) == first
    (tmp_path / "unused.py").write_text("WIDTH = 4\n")
    assert digest_elsewhere(tmp_path) == first
    for name in ("deep.py", "helper.py", "mine.py"):
        (tmp_path / name).write_text(files[name] + "# edited\n")
        changed = digest_elsewhere(tmp_path)
        assert changed != first
        first = changed
