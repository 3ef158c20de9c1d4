"""Skeletons of methods whose clients keep models, or parts of models, of their own.

`Personal` keeps whole models, `PartlyPersonal` some layers, by `split_model`.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from typing_extensions import override

from simfed.ground.errors import InputError
from simfed.ground.method import (
    Layers,
    LocalSteps,
    Method,
    Plan,
    Setting,
    Size,
    State,
    Values,
    Who,
)
from simfed.learn.methods.averaging import Averaging
from simfed.learn.methods.fields import model_down, pick_model, update_up
from simfed.learn.methods.options import Ranged

if TYPE_CHECKING:
    from torch import Tensor

    from simfed.learn.kit import Kit


class Personal(Ranged, Method):
    """Clients that begin with their prototype's first weights, and keep their model.

    A client's state is its model, `weights` and `buffers`, which is evaluated for
    itself; a subclass may keep more there.
    """

    personal = True

    @override
    def begin_client(self, kit: Kit, who: Who) -> State:
        first: State = kit.initial(who.prototype)
        return first

    @override
    def model(self, server: State, own: State, who: Who) -> Values:
        return pick_model(own)


class Part(NamedTuple):
    """Some layers of a model, laid end to end."""

    places: tuple[slice, ...]
    """Their places in the model's flat vector."""
    layers: Layers
    """Their shapes and names."""

    @property
    def entries(self) -> int:
        """Their parameters."""
        return sum(place.stop - place.start for place in self.places)

    def extract(self, flat: Tensor) -> Tensor:
        """Return this part of a model's flat vector, as a vector of its own."""
        import torch

        return torch.cat([flat[place] for place in self.places])

    def put(self, values: Tensor, flat: Tensor) -> None:
        """Write the part into a model's flat vector, in place.

        Args:
            values: (entries,), as `extract` returns them.
            flat: (d,).
        """
        start = 0
        for place in self.places:
            stop = start + place.stop - place.start
            flat[place] = values[start:stop]
            start = stop


class SplitModel(NamedTuple):
    """A model in two parts."""

    shared: Part
    kept: Part


@lru_cache(maxsize=256)
def split_model(size: Size, kept: tuple[str, ...]) -> SplitModel:
    """Return the parts of a model: the layers that are not `kept`, and those that are.

    Args:
        size: whose shapes have names; without names nothing is in either part.
        kept: names of layers, without `.weight` or `.bias`.

    >>> layers = Layers([(2, 2), (2,), (3, 2)], ("a.weight", "a.bias", "b.weight"))
    >>> parts = split_model(Size("net", 12, 0, 2, 1, layers), ("b",))
    >>> parts.shared.entries, parts.kept.layers.names, parts.kept.places
    (6, ('b.weight',), (slice(6, 12, None),))
    """
    names = size.shapes.names if isinstance(size.shapes, Layers) else ()
    ends = accumulate(map(prod, size.shapes), initial=0)
    pieces: tuple[list[tuple[slice, tuple[int, ...], str]], ...] = ([], [])
    for name, shape, stretch in zip(names, size.shapes, pairwise(ends), strict=False):
        own = name.rpartition(".")[0] in kept
        pieces[own].append((slice(*stretch), shape, name))
    parts = []
    for piece in pieces:
        places, shapes, called = zip(*piece, strict=True) if piece else ((), (), ())
        parts.append(Part(tuple(places), Layers(shapes, tuple(called))))
    return SplitModel(*parts)


class PartlyPersonal(Averaging):
    """Averaging of a part of each model, whose other layers stay with the client.

    Clients train the whole. A client's state is its layers as they are after that,
    `weights`, which begin as the prototype's first. Evaluated for it is the part that
    it would be sent now, joined with its own layers. The server's state: prototype →
    `weights` of the shared part, `buffers`.
    """

    personal = True
    joins_sent = True
    two_levels = True
    keeps_buffers = False
    """True if running statistics stay with the client as well."""
    kept_word = ""
    """The kept layers, as an error says it."""

    def kept(self, size: Size) -> tuple[str, ...]:
        """Return the names of the layers that stay with the client."""
        raise NotImplementedError

    def parts(self, size: Size) -> SplitModel:
        """Return the part that travels, and the part that stays."""
        return split_model(size, self.kept(size))

    @override
    def check(self, setting: Setting) -> None:
        for name, size in setting.prototypes.items():
            if not all(part.entries for part in self.parts(size)):
                raise InputError(
                    f"models that train {self.kept_word}, and other layers beside",
                    got=f"{size.model} of {name}",
                )

    def fields(self, size: Size) -> Size:
        """Return the size of what travels: of the shared part alone.

        Running statistics count as 0 where they stay with their client.
        """
        part = self.parts(size).shared
        buffers = 0 if self.keeps_buffers else size.buffers
        return size._replace(parameters=part.entries, buffers=buffers)

    @override
    def plan(self, setting: Setting, who: Who, round: int) -> Plan:
        size, layers = self.fields(who.size), self.parts(who.size).shared.layers
        down, up = model_down(size), update_up(size)
        down["weights"] = down["weights"]._replace(layout=layers)
        up["update"] = up["update"]._replace(layout=layers)
        return Plan(down, (setting.training(who),), up)

    @override
    def begin(self, kit: Kit) -> State:
        sizes = kit.setting.prototypes
        return {
            name: self.shared(sizes[name], kit.initial(name)) for name in kit.prototypes
        }

    @override
    def begin_client(self, kit: Kit, who: Who) -> State:
        return self.own(who.size, kit.initial(who.prototype))

    def shared(self, size: Size, model: Values) -> Values:
        """Return the server's part of a model, `weights` and `buffers`.

        The latter are empty where they stay with their client.
        """
        buffers = model["buffers"][:0] if self.keeps_buffers else model["buffers"]
        return {
            "weights": self.parts(size).shared.extract(model["weights"]),
            "buffers": buffers,
        }

    def own(self, size: Size, model: Values) -> State:
        """Return what a client keeps of a model: its layers, and maybe statistics."""
        weights = {"weights": self.parts(size).kept.extract(model["weights"])}
        return (
            {**weights, "buffers": model["buffers"]} if self.keeps_buffers else weights
        )

    @override
    def model(self, server: State, own: State, who: Who) -> Values:
        parts = self.parts(who.size)
        weights = server["weights"].new_empty(who.parameters)
        parts.shared.put(server["weights"], weights)
        parts.kept.put(own["weights"], weights)
        return {"weights": weights, "buffers": {**server, **own}["buffers"]}

    @override
    def local_steps(
        self, kit: Kit, who: Who, round: int, down: Values, own: State
    ) -> LocalSteps:
        return LocalSteps(self.model(down, own, who))

    @override
    def trained(
        self, kit: Kit, who: Who, round: int, down: Values, own: State, after: Values
    ) -> tuple[Values, State]:
        shared = self.shared(who.size, after)
        return {
            "update": down["weights"] - shared["weights"],
            "buffers": shared["buffers"],
        }, self.own(who.size, after)
