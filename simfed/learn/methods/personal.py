"""The skeleton of methods whose clients keep models of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from simfed.ground.method import Method, State, Values, Who
from simfed.learn.methods.fields import pick_model
from simfed.learn.methods.options import Ranged

if TYPE_CHECKING:
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
