"""Every registered availability keeps the contract; the checks find what breaks it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simfed.fleet import Daily, Markov
from simfed.ground.registry import registry
from simfed.testing import check_availability

OPTIONS = {"battery": {"capacity_j": 6_000.0, "charge_w": 0.05}}


@pytest.mark.parametrize("name", registry("availability").names())
def test_registered_availabilities_keep_the_contract(name):
    check_availability(registry("availability").get(name), **OPTIONS.get(name, {}))


class Nights:
    def presence(self, clients, streams):
        return Daily(22 * 3600.0, 6 * 3600.0, np.zeros(len(clients)))


class Commuters:
    def presence(self, clients, streams):
        return Markov(streams, clients, 2 * 3600.0, 8 * 3600.0)


@pytest.mark.parametrize("cls", [Nights, Commuters])
def test_what_ships_as_keys_keeps_it_too(cls):
    check_availability(cls)


class Wrapped:
    """Nights, but for what a subclass breaks."""

    def presence(self, clients, streams):
        self.nights = Daily(22 * 3600.0, 6 * 3600.0, np.zeros(len(clients)))
        return self

    def __getattr__(self, name):
        return getattr(self.nights, name)


class Lists(Wrapped):
    def mask(self, at_s):
        return self.nights.mask(at_s).tolist()


class TwoTruths(Wrapped):
    def there(self, place, at_s):
        return not self.nights.there(place, at_s)


class LateChange(Wrapped):
    def change_after(self, place, at_s):
        return self.nights.change_after(place, at_s) + 60.0


class NoArrival(Wrapped):
    def arrival_after(self, at_s):
        return math.inf


class Neighbours:
    def presence(self, clients, streams):
        return Daily(22 * 3600.0, 6 * 3600.0, 3600.0 * np.arange(len(clients)))


@pytest.mark.parametrize(
    ("broken", "clause"),
    [
        (Lists, "a mask with a bool"),
        (TwoTruths, "`there` as in the mask"),
        (LateChange, "a change at the instant that is named"),
        (NoArrival, "the next arrival"),
        (Neighbours, "hang on no other client"),
    ],
)
def test_a_broken_availability_is_named(broken, clause):
    with pytest.raises(AssertionError, match=clause):
        check_availability(broken)
