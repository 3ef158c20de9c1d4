"""What links carried, in columns: the list that they stand for."""

from hypothesis import given, settings
from hypothesis import strategies as st

from simfed.ground import NO_AIR, LinkUse, LinkUses

NUMBER = st.floats(0, 1e9)
CHUNK = st.tuples(
    st.sampled_from([0.0, 0.0, 1.5, 1e6 + 0.1]),
    st.lists(
        st.tuples(
            st.integers(0, 3),
            *[NUMBER] * 4,
            st.integers(1, 9),
            st.just(NO_AIR) | st.floats(0, 9),
        )
    ),
)


def expected(chunks):
    return [
        LinkUse(
            "abcd"[link],
            epoch_s + from_s,
            epoch_s + to_s,
            *numbers,
            None if air < 0 else air,
        )
        for epoch_s, uses in chunks
        for link, from_s, to_s, *numbers, air in uses
    ]


def filled(chunks):
    uses = LinkUses()
    uses.names_by("abcd".__getitem__)
    for epoch_s, chunk in chunks:
        uses.add([number for use in chunk for number in use], epoch_s)
    return uses


@settings(max_examples=30)
@given(st.lists(CHUNK), st.lists(CHUNK))
def test_it_is_the_list_of_its_uses(chunks, more):
    uses, others = filled(chunks), filled(more)
    mine, theirs = expected(chunks), expected(more)
    assert (len(uses), list(uses)) == (len(mine), mine)
    assert [
        (uses.name_of(link), *instants) for link, *instants in uses.intervals()
    ] == [(use.link, use.from_s, use.to_s) for use in mine]
    uses.extend(others)
    assert list(uses) == mine + theirs
    uses.clear()
    assert (len(uses), list(uses), list(uses.intervals())) == (0, [], [])
    uses.extend(others)
    assert list(uses) == list(others) == theirs


def test_links_may_come_with_their_names():
    rows = [
        LinkUse(name, 0.5, 2.0, 3.0, 4.0, 1) for name in ("x", "up", "down", "up", "x")
    ]
    one, both = LinkUses(), LinkUses()
    for row in rows[1:]:
        one.append(row)
    both.append(rows[0])
    both.extend(one)
    assert list(both) == rows
    assert {type(use.flows) for use in both} == {int}
