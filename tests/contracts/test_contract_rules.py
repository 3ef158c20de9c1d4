"""The check of merging rules finds what breaks the contract."""

from broken_parts import naming

from simfed.learn.rules import Median
from simfed.testing import check_rule


class Scribbles(Median):
    def merge(self, fields):
        fields["update"].zero_()
        return super().merge(fields)


class Forgets(Median):
    def merge(self, fields):
        return {"update": super().merge(fields)["update"]}


class Spoils(Median):
    def merge(self, fields):
        return {name: self.spoil(table) for name, table in fields.items()}


class Sums(Spoils):
    def spoil(self, table):
        return table.sum(0)


class Divides(Spoils):
    def spoil(self, table):
        return table.mean(0) / 0


class NeedsAMiddle(Spoils):
    def spoil(self, table):
        return table.mean(0) / (len(table) % 2)


class Doubles(Spoils):
    def spoil(self, table):
        return table.mean(0).double()


test_a_broken_rule_is_named = naming(
    check_rule,
    {
        Scribbles: "arguments that are left alone",
        Forgets: "an answer to every field",
        Sums: "what all agree on",
        Divides: "finite numbers of update",
        NeedsAMiddle: "finite numbers of update",
        Doubles: "float32 vectors of update",
    },
)
