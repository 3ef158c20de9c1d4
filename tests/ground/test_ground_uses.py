"""What links carried, in columns."""

from __future__ import annotations

from simfed.ground import NO_AIR, LinkUse, LinkUses


def make_uses():
    uses = LinkUses()
    uses.names_by(["up", "down"].__getitem__)
    return uses


def test_uses_stand_at_instants_whatever_clock_they_were_told_by():
    uses = make_uses()
    uses.add((0, 0.0, 2.0, 30.0, 15.0, 1, 0.5), 0.0)
    uses.add((1, 0.5, 1.0, 8.0, 16.0, 2, NO_AIR, 0, 1.0, 4.0, 3.0, 1.0, 1, 2.5), 10.0)
    assert list(uses) == [
        LinkUse("up", 0.0, 2.0, 30.0, 15.0, 1, 0.5),
        LinkUse("down", 10.5, 11.0, 8.0, 16.0, 2),
        LinkUse("up", 11.0, 14.0, 3.0, 1.0, 1, 2.5),
    ]
    assert list(uses.intervals()) == [(0, 0.0, 2.0), (1, 10.5, 11.0), (0, 11.0, 14.0)]
    assert len(uses) == 3


def test_lists_are_joined_and_emptied():
    uses, more = make_uses(), make_uses()
    uses.add((0, 0.0, 1.0, 1.0, 1.0, 1, NO_AIR), 0.0)
    more.add((1, 0.0, 1.0, 2.0, 2.0, 1, NO_AIR), 5.0)
    uses.extend(more)
    assert [use.from_s for use in uses] == [0.0, 5.0]
    uses.append(LinkUse("by name", 7.0, 8.0, 3.0, 3.0, 1))
    named = LinkUses()
    named.append(LinkUse("by name", 7.0, 8.0, 3.0, 3.0, 1))
    more.extend(named)
    assert list(more)[-1] == list(uses)[-1] == next(iter(named))
    uses.clear()
    assert (len(uses), list(uses)) == (0, [])


def test_uses_that_end_at_one_instant_are_in_the_order_of_their_links_names():
    """Whatever ended first among equals, and on whichever clock.

    Others stay where they are.
    """
    names = ["client-1/up", "server/receive", "client-0/up"]
    uses = LinkUses()
    uses.names_by(lambda link: names[link])
    for link, to_s in ((1, 1.0), (0, 1.0), (2, 1.0), (1, 2.0)):
        uses.add((link, 0.0, to_s, 8.0, 8.0, 1, -1.0), 0.0)
    for link in (1, 2):
        uses.add((link, 0.0, 1.0, 8.0, 8.0, 1, -1.0), 5.0)
    uses.order()
    seen = [(use.link, use.to_s) for use in uses]
    assert seen == [
        ("client-0/up", 1.0), ("client-1/up", 1.0), ("server/receive", 1.0),
        ("server/receive", 2.0), ("client-0/up", 6.0), ("server/receive", 6.0),
    ]  # fmt: skip
