"""The federated methods, one file each, and what a method of one's own may build on.

`Averaging` is the skeleton of methods whose clients train the server's weights;
`by_prototype` and `moved` are the steps of its merge, `model_down` and `update_up` the
fields of its plan. `PartlyPersonal` averages a part of the layers and leaves the others
with their clients. Importing this package imports no torch.

Begin with `fedprox`, which is one step away from `averaging`. In every file what is
known from facts alone (plan, server's work, auxiliary work) comes before learning
(begin, send, train, merge, model). `simfed.ground.method` says what each step is given
and returns.
"""

from simfed.learn.methods.averaging import Averaging, by_prototype, moved
from simfed.learn.methods.fields import model_down, update_up
from simfed.learn.methods.personal import PartlyPersonal

__all__ = [
    "Averaging",
    "PartlyPersonal",
    "by_prototype",
    "model_down",
    "moved",
    "update_up",
]
