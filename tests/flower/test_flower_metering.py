"""Work that PyTorch's hooks see, and what it costs; needs no Flower."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from simfed.device import build_processor, load_profile
from simfed.errors import InputError, RunFailed
from simfed.flower.computing import Charge, Spent, price
from simfed.flower.metering import Counted, Meter, Pass
from simfed.learn.catalogue import model_facts
from simfed.learn.models import build_model
from simfed.scenario.fleet_file import Computing

SHAPE = (1, 28, 28)


def train(net, batch):
    loss = F.cross_entropy(net(torch.rand(batch, *SHAPE)), torch.zeros(batch, dtype=torch.long))
    loss.backward()


@pytest.mark.parametrize("name", ["lenet5", "lenet5-half", "logistic-regression"])
def test_a_step_counts_the_flops_and_parameters_of_its_model(name):
    """As the catalogue adds them up layer by layer."""
    facts = model_facts(name, SHAPE, 10)
    net, meter = build_model(name, SHAPE, 10, seed=0), Meter()
    with meter.watched():
        train(net, 8)
        with torch.no_grad():
            net(torch.rand(5, *SHAPE))
    step, inference = meter.take().passes
    assert (step.samples, step.parameters, step.trained) == (8, facts.parameters, True)
    assert step.flops == 8 * facts.train_flops
    assert (inference.samples, inference.trained) == (5, False)
    assert inference.flops == 5 * facts.forward_flops


def test_nothing_is_counted_outside_and_twice():
    net, meter = build_model("lenet5", SHAPE, 10, seed=0), Meter()
    train(net, 2)
    with meter.watched():
        pass
    assert meter.take().nothing
    with meter.watched():
        train(net, 2)
    assert len(meter.take().passes) == 1
    assert meter.take().nothing


def test_operators_without_a_module_are_one_pass():
    meter = Meter()
    with meter.watched():
        weights = torch.rand(3, 4, requires_grad=True)
        (torch.rand(7, 4) @ weights.T).sum().backward()
    assert meter.take() == Counted((Pass(0, 1, 2.0 * 2 * 7 * 4 * 3, trained=True),))


def test_an_exception_in_a_model_leaves_the_meter_in_order():
    meter = Meter()
    net = torch.nn.Sequential(torch.nn.Linear(4, 3))
    with meter.watched():
        with pytest.raises(RuntimeError):
            net(torch.rand(2, 5))
        net(torch.rand(2, 4))
    assert [one.samples for one in meter.take().passes] == [2, 2]


def priced(counted, **more):
    processor = build_processor({}, load_profile("x86-2core-vm"))
    return price(
        Computing(), Spent(counted, 0.0), processor=processor, kind="train", values=dict, **more
    )


def test_counted_steps_are_priced_by_the_profiles_law():
    law = load_profile("x86-2core-vm").curves["training", "any", ""].parameters
    flops, parameters = 5e9, 1_000_000
    expected = law["overhead"] + max(law["per_flop"] * flops, law["per_byte"] * 12 * parameters)
    step = Pass(parameters, 32, flops, trained=True)
    assert priced(Counted((step, step))) == pytest.approx(2 * expected, rel=1e-12)


def test_work_that_nobody_saw_is_an_error_and_no_zero_seconds():
    with pytest.raises(RunFailed, match=r"nothing that PyTorch's hooks see"):
        priced(Counted(), must_count=True)


def test_a_profile_without_a_law_says_so():
    processor = build_processor({}, load_profile("rtx3090-ryzen4800h"))
    spent = Spent(Counted((Pass(10, 1, 5.0, trained=True),)), 0.0)
    with pytest.raises(InputError, match=r"a profile with a law of training for any model"):
        price(Computing(), spent, processor=processor, kind="train", values=dict)


def test_measured_seconds_are_the_hosts_times_the_speed():
    computing = Computing(kind="measured", speed=0.5)
    charge = Charge(computing)
    with charge.watched():
        sum(range(100_000))
    spent = charge.take()
    assert spent.host_s > 0
    cost = price(computing, spent, processor=None, kind="train", values=dict)
    assert cost == 0.5 * spent.host_s
