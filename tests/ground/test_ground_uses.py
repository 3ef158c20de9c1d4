"""What links carried, in columns."""

from simfed.ground import LinkUse, LinkUses


def test_uses_by_name_are_joined():
    uses, named, use = LinkUses(), LinkUses(), LinkUse("x", 7.0, 8.0, 3.0, 3.0, 1)
    named.append(use)
    uses.extend(named)
    assert [*uses] == [*named] == [use]


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
