"""The check of availabilities finds what breaks the contract."""

import math

import numpy as np
import pytest
from broken_parts import naming

from simfed.fleet import Daily, Markov
from simfed.testing import check_availability


class Nights:
    def presence(self, clients, streams):
        return Daily(22 * 3600.0, 6 * 3600.0, np.zeros(len(clients)))


class Commuters:
    def presence(self, clients, streams):
        return Markov(streams, clients, 2 * 3600.0, 8 * 3600.0)


@pytest.mark.parametrize("cls", [Nights, Commuters])
def test_presences_that_ship_as_keys_keep_the_contract(cls):
    check_availability(cls)


class Wrapped:
    """Nights, but for what a subclass breaks."""

    def presence(self, *given):
        self.nights = Nights().presence(*given)
        return self

    def __getattr__(self, name):
        return getattr(self.nights, name)


class Lists(Wrapped):
    def mask(self, at_s):
        return self.nights.mask(at_s).tolist()


class TwoTruths(Wrapped):
    def there(self, *asked):
        return not self.nights.there(*asked)


class LateChange(Wrapped):
    def change_after(self, *asked):
        return self.nights.change_after(*asked) + 60.0


class NoArrival(Wrapped):
    def arrival_after(self, at_s):
        return math.inf


class Neighbours:
    def presence(self, clients, streams):
        return Daily(22 * 3600.0, 6 * 3600.0, 3600.0 * np.arange(len(clients)))


test_a_broken_availability_is_named = naming(
    check_availability,
    {
        Lists: "a mask with a bool",
        TwoTruths: "`there` as in the mask",
        LateChange: "a change at the instant that is named",
        NoArrival: "the next arrival",
        Neighbours: "hang on no other client",
    },
)
