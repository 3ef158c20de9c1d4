"""Changes of a case whose effect is known without knowing the answer."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
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
    links = [
        {
            "capacity_bytes_per_s": draw(NUMBERS),
            "latency_s": draw(st.sampled_from([0.0, 0.0, 0.5, 0.13])),
        }
        for _ in range(draw(st.integers(1, 6)))
    ]
    flows = []
    for _ in range(draw(st.integers(1, 14))):
        path = draw(
            st.lists(
                st.integers(0, len(links) - 1), min_size=1, max_size=4, unique=True
            )
        )
        start = draw(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 8)))
        size = draw(st.one_of(st.just(7.0), st.floats(0.5, 60)))
        flows.append(
            {
                "start_s": start,
                "size_bytes": size,
                "path": path,
                "weight": draw(st.sampled_from([1.0, 1.0, 2.0])),
            }
        )
    return {"links": links, "flows": flows}


def changed(case, links=None, flows=None):
    return {
        "links": [{**link, **(links or dict)(link)} for link in case["links"]],
        "flows": [{**flow, **(flows or dict)(flow)} for flow in case["flows"]],
    }


def close(a, b, rtol=1e-9):
    np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-9)


MODELS = st.sampled_from(["fluid", "tcp"])


@settings(max_examples=30, deadline=None)
@given(cases(), MODELS, st.randoms(use_true_random=False))
def test_the_numbers_of_links_and_flows_mean_nothing(case, model, random):
    flow_order = list(range(len(case["flows"])))
    link_order = list(range(len(case["links"])))
    random.shuffle(flow_order)
    random.shuffle(link_order)
    new_number = {old: new for new, old in enumerate(link_order)}
    permuted = {
        "links": [case["links"][k] for k in link_order],
        "flows": [
            {
                **case["flows"][k],
                "path": [new_number[link] for link in case["flows"][k]["path"]],
            }
            for k in flow_order
        ],
    }
    close(net.replay(permuted, model), net.replay(case, model)[flow_order])


@settings(max_examples=30, deadline=None)
@given(cases(), MODELS)
def test_the_order_of_a_path_means_nothing(case, model):
    turned = changed(case, None, lambda flow: {"path": flow["path"][::-1]})
    close(net.replay(turned, model), net.replay(case, model))


@settings(max_examples=30, deadline=None)
@given(cases(), st.floats(0, 1))
def test_a_link_split_in_two_in_series_is_the_same_link(case, share):
    extra = len(case["links"])
    first = case["links"][0]
    split = changed(
        case,
        None,
        lambda flow: {"path": [*flow["path"], *([extra] if 0 in flow["path"] else [])]},
    )
    split["links"][0] = {**first, "latency_s": first["latency_s"] * share}
    split["links"].append({**first, "latency_s": first["latency_s"] * (1 - share)})
    close(net.replay(split), net.replay(case))


@settings(max_examples=30, deadline=None)
@given(cases())
def test_a_link_too_fast_to_matter_does_not(case):
    total = sum(link["capacity_bytes_per_s"] for link in case["links"])
    wide = changed(
        case, None, lambda flow: {"path": [*flow["path"], len(case["links"])]}
    )
    wide["links"].append(
        {"capacity_bytes_per_s": total * len(case["flows"]), "latency_s": 0.0}
    )
    close(net.replay(wide), net.replay(case))


@settings(max_examples=30, deadline=None)
@given(cases())
def test_a_flow_of_weight_two_is_two_flows(case):
    """Two equal flows side by side take as long as one of twice the size and twice the
    weight.
    """
    one = changed(
        case,
        None,
        lambda flow: {
            "size_bytes": 2 * flow["size_bytes"],
            "weight": 2 * flow["weight"],
        },
    )
    two = {"links": case["links"], "flows": case["flows"] * 2}
    finish = net.replay(two)
    half = len(case["flows"])
    close(finish[:half], finish[half:])
    close(net.replay(one), finish[:half])


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
        rate = link["capacity_bytes_per_s"]
        traces[k] = LinkTrace(
            Trace.of([0.0, 0.7], [rate, np.nextafter(rate, inf)], 1.3, "loop"), 0.4 * k
        )
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
    shifted = [
        played(case, {0: LinkTrace(trace, 0.1 + shift)}, epoch)
        for shift, epoch in (
            (0.0, 0.0),
            (turns * trace.duration_s, 0.0),
            (0.0, turns * trace.duration_s),
        )
    ]
    np.testing.assert_allclose(shifted[1], shifted[0], rtol=1e-9)
    np.testing.assert_allclose(shifted[2], shifted[0], rtol=1e-9)


@settings(max_examples=30, deadline=None)
@given(cases())
def test_the_total_work_of_a_single_link_does_not_depend_on_how_it_is_shared(case):
    """On one link the last byte leaves at the same time under any work-conserving
    sharing.
    """
    flows = [{**flow, "path": [0]} for flow in case["flows"]]
    link = {**case["links"][0], "latency_s": 0.0}
    equal = net.replay({"links": [link], "flows": flows})
    weighted = net.replay(
        {
            "links": [link],
            "flows": [{**f, "weight": 1.0 + k} for k, f in enumerate(flows)],
        }
    )
    assert weighted.max() == pytest.approx(equal.max(), rel=1e-9)
    work_end = 0.0
    for flow in sorted(flows, key=lambda f: f["start_s"]):
        work_end = (
            max(work_end, flow["start_s"])
            + flow["size_bytes"] / link["capacity_bytes_per_s"]
        )
    assert equal.max() == pytest.approx(work_end, rel=1e-9)
