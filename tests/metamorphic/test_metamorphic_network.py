"""Changes of a case whose effect is known without knowing the answer."""

from __future__ import annotations

from math import inf

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simfed import net
from simfed.net import LinkTrace, Trace
from simfed.net.engine import Engine
from simfed.net.flows import Flow

NUMBERS = st.floats(0.1, 20.0)


@st.composite
def cases(draw):
    """Random meshes, some flows at the same instants, some of the same size."""
    latencies = st.sampled_from([0.0, 0.0, 0.5, 0.13])
    links = draw(
        st.lists(
            st.fixed_dictionaries(
                {"capacity_bytes_per_s": NUMBERS, "latency_s": latencies}
            ),
            min_size=1,
            max_size=6,
        )
    )
    numbers = st.integers(0, len(links) - 1)
    flow = {
        "start_s": st.sampled_from([0.0, 1.0]) | st.floats(0, 8),
        "size_bytes": st.just(7.0) | st.floats(0.5, 60),
        "path": st.lists(numbers, min_size=1, max_size=4, unique=True),
        "weight": st.sampled_from([1.0, 1.0, 2.0]),
    }
    flows = st.lists(st.fixed_dictionaries(flow), min_size=1, max_size=14)
    return {"links": links, "flows": draw(flows)}


def changed(case, change):
    """The case with other flows."""
    flows = [{**flow, **change(flow)} for flow in case["flows"]]
    return {"links": [*case["links"]], "flows": flows}


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


MODELS = st.sampled_from(["fluid", "tcp"])


@settings(max_examples=30, deadline=None)
@given(cases(), MODELS, st.randoms(use_true_random=False))
def test_the_numbers_of_links_and_flows_mean_nothing(case, model, random):
    links, order = ([*range(len(case[key]))] for key in ("links", "flows"))
    random.shuffle(links)
    random.shuffle(order)
    moved = changed(
        case, lambda flow: {"path": [links.index(link) for link in flow["path"]]}
    )
    permuted = {
        "links": [case["links"][k] for k in links],
        "flows": [moved["flows"][k] for k in order],
    }
    close(net.replay(permuted, model), net.replay(case, model)[order])


@settings(max_examples=30, deadline=None)
@given(cases(), MODELS)
def test_the_order_of_a_path_means_nothing(case, model):
    turned = changed(case, lambda flow: {"path": flow["path"][::-1]})
    close(net.replay(turned, model), net.replay(case, model))


@settings(max_examples=30, deadline=None)
@given(cases(), st.floats(0, 1))
def test_a_link_split_in_two_in_series_is_the_same_link(case, share):
    first, extra = case["links"][0], len(case["links"])
    split = changed(
        case, lambda flow: {"path": flow["path"] + [extra] * (0 in flow["path"])}
    )
    split["links"].append(first)
    for number, part in ((0, share), (extra, 1 - share)):
        split["links"][number] = {**first, "latency_s": first["latency_s"] * part}
    close(net.replay(split), net.replay(case))


@settings(max_examples=30, deadline=None)
@given(cases())
def test_a_flow_of_weight_two_is_two_flows(case):
    """Two equal flows side by side take as long as one of twice the size and twice the
    weight.
    """
    twice = ("size_bytes", "weight")
    one = changed(case, lambda flow: {key: 2 * flow[key] for key in twice})
    finish = net.replay({**case, "flows": case["flows"] * 2})
    first, second = np.split(finish, 2)
    close(first, second)
    close(net.replay(one), first)


def played(case, traces, epoch_s=0.0):
    """Durations with the links' capacities replaced by traces."""
    engine = Engine([link["capacity_bytes_per_s"] for link in case["links"]], traces)
    engine.epoch_s = epoch_s
    flows = []
    for k, flow in enumerate(case["flows"]):
        latency = sum(case["links"][link]["latency_s"] for link in flow["path"])
        flows.append(
            Flow(k, flow["size_bytes"], tuple(flow["path"]), latency, flow["weight"])
        )
        engine.start(flows[-1], flow["start_s"])
    engine.advance(inf)
    return np.array([flow.spent_s for flow in flows])


@settings(max_examples=40, deadline=None)
@given(cases())
def test_a_constant_trace_is_a_constant_link(case):
    # two pieces that differ by nothing a double can hold, so that the trace does have
    # events
    traces = {}
    for k, link in enumerate(case["links"]):
        rates = [link["capacity_bytes_per_s"]] * 2
        rates[1] = np.nextafter(rates[0], inf)
        traces[k] = LinkTrace(Trace.of([0.0, 0.7], rates, 1.3, "loop"), 0.4 * k)
    starts = np.array([flow["start_s"] for flow in case["flows"]])
    close(played(case, traces), net.replay(case) - starts)


@settings(max_examples=40, deadline=None)
@given(
    cases(),
    st.lists(st.floats(0.1, 9), min_size=2, max_size=4),
    st.floats(0.3, 4),
    st.integers(1, 50),
)
def test_a_loop_shifted_by_its_period_is_the_same(case, rates, piece, turns):
    starts = [piece * k for k in range(len(rates))]
    trace = Trace.of(starts, rates, piece * len(rates), "loop")
    period_s = turns * trace.duration_s
    still = played(case, {0: LinkTrace(trace, 0.1)})
    for shift_s, epoch_s in ((period_s, 0.0), (0.0, period_s)):
        shifted = played(case, {0: LinkTrace(trace, 0.1 + shift_s)}, epoch_s)
        np.testing.assert_allclose(shifted, still, rtol=1e-9)
