"""The journal: written once, read to where a state says, found where it was damaged."""

import pytest

from simfed import InputError, RunFailed
from simfed.record import COMPRESSED, NAME, Journal, read_finished
from simfed.record.journal import check_prefix

MERGED = [1, False, None, {"p": {"kd_loss": float("inf")}}, {}, {"p": [0.5, None]}]
LINES = [("a", "up 3/1", [1234.5, None]), ("b", "merge 1", MERGED)]


def written(path, lines=LINES):
    journal = Journal(path / NAME)
    for line in lines:
        journal.note(*line)
    return journal


def test_it_answers_in_order_what_it_was_told(tmp_path):
    end = written(tmp_path).flush().bytes
    journal = Journal(tmp_path / NAME, end)
    assert [journal.known(key, label) for key, label, _ in LINES] == [
        x[2] for x in LINES
    ]
    assert journal.next is None
    assert journal.known("c", "merge 2") is None


def test_whoever_watches_a_run_reads_its_merges_at_once(tmp_path):
    journal = written(tmp_path)
    lines = [len((tmp_path / NAME).read_text().splitlines())]
    for label in ("up 4/1", "merge 2"):
        journal.note("c", label, MERGED)
        lines.append(len((tmp_path / NAME).read_text().splitlines()))
    assert lines == [2, 2, 4]


def test_other_decisions_are_noticed_at_the_next_answer(tmp_path):
    end = written(tmp_path).flush().bytes
    for key, label, said in (
        ("x", "up 3/1", "answers up 3/1, but what was decided before"),
        ("a", "up 4/1", "answers up 3/1 where up 4/1 is asked for, but"),
    ):
        with pytest.raises(RunFailed, match=said):
            Journal(tmp_path / NAME, end).known(key, label)


def test_what_lies_beyond_a_state_is_cut_off(tmp_path):
    journal = written(tmp_path, LINES[:1])
    prefix = journal.flush()
    journal.note(*LINES[1])
    journal.flush()
    with (tmp_path / NAME).open("a") as file:
        file.write('["c","half')
    check_prefix(tmp_path / NAME, prefix)
    again = Journal(tmp_path / NAME, prefix.bytes)
    again.known(*LINES[0][:2])
    again.note(*LINES[1])
    digest = again.compress()
    assert [tuple(line) for line in read_finished(tmp_path, digest)] == LINES


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[:-3], "3 bytes of it are missing"),
        (lambda text: text.replace(b"1234", b"1235"), "it was changed"),
        (lambda text: text.splitlines(keepends=True)[0] * 2 + text, "it was changed"),
        (lambda text: text[::-1], "it was changed"),
    ],
)
def test_damage_before_a_state_is_found(tmp_path, damage, said):
    prefix = written(tmp_path).flush()
    (tmp_path / NAME).write_bytes(damage((tmp_path / NAME).read_bytes()))
    with pytest.raises(InputError, match=said):
        check_prefix(tmp_path / NAME, prefix)


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b"[[], 1, 2]\n", b'["\xff", "a", 1]\n']
)
def test_line_that_is_none_is_damage(tmp_path, line):
    (tmp_path / NAME).write_bytes(line)
    with pytest.raises(InputError, match="damaged at byte 0"):
        Journal(tmp_path / NAME, None)


def test_finished_one_is_of_its_digest(tmp_path):
    written(tmp_path).compress()
    path = tmp_path / COMPRESSED
    whole = path.read_bytes()
    half = whole[: len(whole) // 2]
    for content, said in (whole, "it was changed"), (half, "damaged at byte"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=said):
            list(read_finished(tmp_path, "0" * 32))
