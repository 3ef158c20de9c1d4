"""What trains of a model: adapters, the head, all; pretrained weights; facts alone."""

from __future__ import annotations

import copy
import json
import os
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from worlds import play, world

import simfed
from simfed.ground.vocabulary import ModelFacts
from simfed.learn import Crew, FlatModel, build_model, count_facts, model_facts
from simfed.learn.models.adapters import AdaptedLinear, FrozenNorm
from simfed.learn.models.layers import find_last_linear
from simfed.learn.pretrained import Weights
from simfed.scenario.prototype import PrototypeSpec

LINEAR = {"rank": 4, "targets": ["1", "3"]}
TEXT = (12,), 20


def spec(**keys) -> PrototypeSpec:
    return PrototypeSpec.model_validate(keys)


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p for n, p in module.state_dict().items() if p.is_floating_point()}


def save(module: nn.Module, path) -> str:
    save_file(state(module), path)
    return str(path)


def test_an_adapted_layer_is_at_first_the_layer_alone():
    whole = build_model("causal-transformer", *TEXT, seed=3)
    lora = {"model": "causal-transformer", "adapters": {"rank": 2}}
    adapted = build_model(spec(**lora), *TEXT, seed=3)
    x = torch.arange(24).view(2, 12) % 20
    assert torch.equal(whole(x), adapted(x))
    layer = adapted.blocks[1].attend
    assert isinstance(layer, AdaptedLinear)
    assert layer.A.std() > 0
    assert not layer.B.any()
    assert not isinstance(adapted.blocks[1].up, AdaptedLinear)
    other = build_model(spec(**lora), *TEXT, seed=4)
    assert not torch.equal(other.blocks[1].attend.A, layer.A)


def test_gradients_of_adapters_are_those_of_their_product():
    """Against W + (alpha/rank)·B·A, differentiated as it is written."""
    model = spec(model="perceptron", adapters={**LINEAR, "alpha": 6})
    module = build_model(model, (1, 3, 3), 3, seed=1)
    layers = [layer for layer in module if isinstance(layer, nn.Linear)]
    thin = [tensor for layer in layers[:2] for tensor in (layer.A, layer.B)]
    assert FlatModel(module).parameters == sum(tensor.numel() for tensor in thin)
    x, y = torch.randn(5, 1, 3, 3), torch.arange(5) % 3
    with torch.no_grad():
        for layer in layers[:2]:
            layer.B.normal_()
    F.cross_entropy(module(x), y).backward()
    apart = [tensor.detach().clone().requires_grad_() for tensor in thin]
    h = x.flatten(1)
    for i, layer in enumerate(layers):
        product = 6 / 4 * (apart[2 * i + 1] @ apart[2 * i]) if i < 2 else 0
        h = F.linear(h, layer.weight + product, layer.bias)
        h = h.relu() if i < 2 else h
    wanted = torch.autograd.grad(F.cross_entropy(h, y), apart)
    for tensor, slope in zip(thin, wanted, strict=True):
        torch.testing.assert_close(tensor.grad, slope, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("keys", [
    {"model": "lenet5-half", "train": "head"},
    {"model": "lenet5-half", "adapters": {"rank": 3, "targets": ["fc*"]}},
    {"model": "lenet5-half", "adapters": {"rank": 3, "targets": "fc2"}},
    {"model": "perceptron", "adapters": LINEAR},
    {"model": "resnet18", "train": "head"},
    {"model": "resnet18", "adapters": {"rank": 2, "targets": ["head"]}},
])  # fmt: skip
def test_facts_known_without_torch_are_those_of_the_module(keys):
    """Sizes, shapes, and FLOPs as PyTorch counts them, forward and backward."""
    shape = (3, 16, 16)
    assert model_facts(spec(**keys), shape, 7) == count_facts(spec(**keys), shape, 7)


def test_backward_work_by_hand():
    """Head alone: its weights. Adapters: no weights of the base, no inputs below."""
    whole = 2 * (27 * 200 + 200 * 200 + 200 * 5)
    head = model_facts(spec(model="perceptron", train="head"), (3, 3, 3), 5)
    assert head.train_flops == whole + 2 * 200 * 5
    one = {"rank": 4, "targets": ["3"]}
    known = model_facts(spec(model="perceptron", adapters=one), (3, 3, 3), 5)
    thin = 2 * (200 * 4 + 4 * 200)
    # weights of A and B, the input of B; the input of the last layer
    assert known.train_flops == whole + thin + thin + 2 * 4 * 200 + 2 * 200 * 5
    assert (known.parameters, known.base) == (1600, 28 * 200 + 201 * 200 + 201 * 5)


def test_batch_norm_of_a_base_stands_still():
    module = build_model(spec(model="resnet18", train="head"), (3, 8, 8), 4, seed=0)
    before = copy.deepcopy(module.state_dict())
    flat = FlatModel(module)
    assert any(isinstance(layer, FrozenNorm) for layer in module.modules())
    assert flat.statistics.numel() == 0
    assert flat.parameters == 512 * 4 + 4
    x = torch.randn(6, 3, 8, 8)
    assert torch.equal(module.train()(x)[:2], module.eval()(x)[:2]) or torch.allclose(
        module.train()(x), module.eval()(x)
    )
    module.train()(x).sum().backward()
    assert all(torch.equal(v, before[n]) for n, v in module.state_dict().items())
    assert find_last_linear(module).weight.grad is not None


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_safetensors_come_back_as_float32(tmp_path, kind):
    module = build_model("resnet18", (3, 8, 8), 4, seed=5)
    file = str(tmp_path / "base.safetensors")
    save_file({n: t.to(kind) for n, t in state(module).items()}, file)
    again = build_model(spec(model="resnet18", pretrained=file), (3, 8, 8), 4, seed=6)
    for name, tensor in state(module).items():
        assert torch.equal(state(again)[name], tensor.to(kind).float()), name
    assert Weights(file).shapes["head.weight"] == (4, 512)


@pytest.mark.parametrize(("tensors", "problem"), [
    ({"1.weight": (200, 5)}, "tensor 1.weight has shape 200×5, the model's has 200×4"),
    ({"5.bias": None}, "tensor 5.bias is missing, the model's has 3"),
    ({"7.bias": (3,)}, "the model has no tensor 7.bias, here of 3"),
])  # fmt: skip
def test_weights_that_do_not_fit_are_named(tmp_path, tensors, problem):
    """Without torch before a run, and where a module is built."""
    whole = state(build_model("perceptron", (1, 2, 2), 3, seed=5))
    for name, shape in tensors.items():
        whole[name] = None if shape is None else torch.zeros(shape)
    file = str(tmp_path / "base.safetensors")
    save_file({n: t for n, t in whole.items() if t is not None}, file)
    model = spec(model="perceptron", pretrained=file)
    for ask in (model_facts, count_facts):
        with pytest.raises(simfed.InputError) as error:
            ask(model, (1, 2, 2), 3)
        assert error.value.problem == problem
        assert error.value.where == file


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    module = build_model("perceptron", (1, 2, 2), 3, seed=5)
    with torch.no_grad():
        module[3].bias[7] = torch.nan
    file = save(module, tmp_path / "base.safetensors")
    with pytest.raises(simfed.InputError, match=r"tensor 3\.bias: expected finite"):
        build_model(spec(model="perceptron", pretrained=file), (1, 2, 2), 3, seed=0)


# ---- folders of GPT-2's layout -------------------------------------------------------

SIZES = {
    "model_type": "gpt2", "vocab_size": 30, "n_positions": 16, "n_embd": 8,
    "n_layer": 2, "n_head": 2,
}  # fmt: skip


def write_folder(path, prefix="", **sizes) -> str:
    """Write a folder as the library does; return its path."""
    config = {**SIZES, **sizes}
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    draw = torch.Generator().manual_seed(1)
    width, tensors = config["n_embd"], {}
    layers = {
        "ln_1": (width,), "attn.c_attn": (width, 3 * width),
        "attn.c_proj": (width, width), "ln_2": (width,),
        "mlp.c_fc": (width, 4 * width), "mlp.c_proj": (4 * width, width),
    }  # fmt: skip
    shapes = {"wte.weight": (30, width), "wpe.weight": (16, width)}
    for k in range(config["n_layer"]):
        for name, shape in layers.items():
            shapes[f"h.{k}.{name}.weight"] = shape
            shapes[f"h.{k}.{name}.bias"] = shape[-1:]
        tensors[f"{prefix}h.{k}.attn.bias"] = torch.ones(1, 1, 16, 16)
    shapes |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
    for name, shape in shapes.items():
        tensors[prefix + name] = torch.randn(shape, generator=draw)
    save_file(tensors, path / "model.safetensors")
    return str(path)


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_a_folder_of_gpt2s_layout_loads_by_its_config(tmp_path, prefix):
    """Names, matrices turned, and a head that is the embedding; by hand at one place.

    At the first place attention sees itself alone: its values, projected.
    """
    folder = write_folder(tmp_path / "tiny", prefix)
    module = build_model(spec(pretrained=folder), (9,), 26, seed=0).eval()
    w = {
        n.removeprefix(prefix): t
        for n, t in load_file(f"{folder}/model.safetensors").items()
    }

    def norm(x, name):
        return F.layer_norm(x, (8,), w[f"{name}.weight"], w[f"{name}.bias"])

    x = w["wte.weight"][[3]] + w["wpe.weight"][:1]
    for k in ("h.0", "h.1"):
        each = norm(x, f"{k}.ln_1") @ w[f"{k}.attn.c_attn.weight"]
        value = (each + w[f"{k}.attn.c_attn.bias"])[:, 16:]
        x = x + value @ w[f"{k}.attn.c_proj.weight"] + w[f"{k}.attn.c_proj.bias"]
        up = norm(x, f"{k}.ln_2") @ w[f"{k}.mlp.c_fc.weight"] + w[f"{k}.mlp.c_fc.bias"]
        cubic = (2 / torch.pi) ** 0.5 * (up + 0.044715 * up**3)
        up = 0.5 * up * (1 + cubic.tanh())
        x = x + up @ w[f"{k}.mlp.c_proj.weight"] + w[f"{k}.mlp.c_proj.bias"]
    wanted = norm(x, "ln_f") @ w["wte.weight"][:26].T
    answer = module(torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5]]))
    assert answer.shape == (1, 9, 26)
    torch.testing.assert_close(answer[0, :1], wanted, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("kind", "keys"), [
    ("transformer", {"train": "head"}), ("transformer", {"adapters": {"rank": 2}}),
    ("folder", {}), ("folder", {"adapters": {"rank": 2}}),
])  # fmt: skip
def test_facts_of_a_decoder_are_those_of_the_module_and_its_attention(
    tmp_path, kind, keys
):
    """PyTorch's counter leaves out attention: two products, twice that backward."""
    base, width = {"model": "causal-transformer"}, 128
    if kind == "folder":
        base, width = {"pretrained": write_folder(tmp_path / "tiny")}, 8
    model = spec(**base, **keys)
    known, counted = model_facts(model, *TEXT), count_facts(model, *TEXT)
    pairs = 2 * 2 * 2 * 12 * 12 * width
    assert known.forward_flops - counted.forward_flops == pairs
    backward = 0 if "train" in keys else 2
    assert known.train_flops - counted.train_flops == (1 + backward) * pairs
    for name in ("parameters", "base", "buffers", "shapes", "names", "features"):
        assert getattr(known, name) == getattr(counted, name)


@pytest.mark.transformers
@pytest.mark.parametrize("heads", [1, 4])
def test_logits_are_those_of_the_library(tmp_path, heads):
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=61, n_positions=24, n_embd=32, n_layer=3, n_head=heads,
        layer_norm_epsilon=1e-4,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    for parameter in theirs.parameters():
        parameter.data.normal_(std=0.3)
    theirs.save_pretrained(tmp_path / "tiny")
    ours = build_model(spec(pretrained=str(tmp_path / "tiny")), (24,), 61, seed=0)
    x = torch.randint(61, (5, 24))
    with torch.no_grad():
        answers = ours.eval()(x), theirs(x).logits
    assert answers[1].std() > 0.5
    torch.testing.assert_close(*answers, atol=1e-5, rtol=1e-5)


# ---- runs ----------------------------------------------------------------------------


def run(prototype, out=None, **keys):
    link = {"up": "8 Mbps", "down": "8 Mbps"}
    plain = {
        "prototypes.a": prototype, "clients[0].count": 3, "clients[0].link": link,
        "training": {"local_steps": 2, "batch_size": 8, "learning_rate": 0.1},
        "policy.strategy": "dense",
    }  # fmt: skip
    return play(world("tiny", {**plain, **keys}), out)


ADAPTED = {"model": "perceptron", "adapters": LINEAR}
D = 4 * (784 + 200) + 4 * (200 + 200)


def test_only_what_trains_travels_and_is_saved(tmp_path):
    done = run(ADAPTED, tmp_path / "r", checkpoint={"every": 1})
    sent = done.participations
    assert set(sent["uplink_bytes"]) == set(sent["downlink_bytes"]) == {4.0 * D}
    assert done.manifest["models"]["a"]["parameters"] == D
    assert done.manifest["models"]["a"]["model"] == "perceptron/adapters-4-1-3"
    saved = sum(f.stat().st_size for f in (tmp_path / "r").rglob("*") if f.is_file())
    assert saved < 4 * 199_210  # the base alone


def test_residuals_are_of_what_trains():
    done = run(ADAPTED, **{"policy.strategy": "top-k", "compression.k": "1%"})
    assert set(done.participations["k"]) == {round(D * 0.01)}


def test_learning_starts_from_the_base(tmp_path):
    module = build_model("perceptron", (1, 28, 28), 10, seed=0)
    with torch.no_grad():
        module[5].bias[3] += 30.0  # it takes everything for a 3
    file = save(module, tmp_path / "base.safetensors")
    started = run({**ADAPTED, "pretrained": file}).prototypes
    assert started["test_accuracy"].iloc[-1] == pytest.approx(0.1)
    assert started["test_loss"].iloc[-1] > 10


def test_another_base_in_place_of_the_first_is_noticed(tmp_path):
    file = str(tmp_path / "base.safetensors")
    modules = [build_model("perceptron", (1, 28, 28), 10, seed=s) for s in (1, 2)]
    digests = []
    for module in modules:
        save(module, file)
        done = run({**ADAPTED, "pretrained": file})
        digests.append(done.manifest["data"]["mnist-mini"])
    assert digests[0] != digests[1]
    assert run(ADAPTED).manifest["data"]["mnist-mini"] not in digests


def test_the_base_travels_once_where_it_is_charged():
    keys = {"charge": {"base": True}, "participation": {"clients_per_round": 2}}
    done = run(ADAPTED, rounds=4, **keys)
    first = set()
    for row in done.participations.itertuples():
        base = 0 if row.client in first else 4 * 199_210
        assert row.downlink_bytes == 4 * D + base
        first.add(row.client)
    assert len(first) == 3


def own_bytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor in pages that no other process maps (pagemap, bit 56)."""
    page = os.sysconf("SC_PAGESIZE")
    first = tensor.data_ptr() // page
    last = (tensor.data_ptr() + tensor.nbytes - 1) // page
    with open("/proc/self/pagemap", "rb") as table:
        table.seek(8 * first)
        entries = np.frombuffer(table.read(8 * (last - first + 1)), dtype=np.uint64)
    return page * int(((entries >> np.uint64(56)) & np.uint64(1)).sum())


class Bystander:
    """Holds a model; a unit of work is a step on its adapters."""

    def __init__(self, module: nn.Module) -> None:
        self.flat = FlatModel(module)

    def base(self) -> list[torch.Tensor]:
        return [p for p in self.flat.module.parameters() if not p.requires_grad]

    def step(self, seed: int) -> tuple[int, int]:
        gradient = torch.zeros_like(self.flat.weights)
        self.flat.accumulate_into(gradient)
        self.flat.module(torch.ones(2, 3, 200, 200)).sum().backward()
        self.flat.accumulate_into(None)
        self.flat.weights -= gradient
        time.sleep(0.01)  # so that both have some
        return os.getpid(), sum(map(own_bytes, self.base()))


def test_workers_share_the_memory_of_the_base():
    """Of a base of 96 MB no worker has more than a tenth in pages of its own."""
    adapters = {"rank": 2, "targets": ["1"]}
    module = build_model(
        spec(model="perceptron", adapters=adapters), (3, 200, 200), 5, seed=0
    )
    bystander = Bystander(module)
    size = sum(p.nbytes for p in bystander.base())
    assert size > 96e6
    assert bystander.step(0)[1] > 0.9 * size  # before there is a second process
    with Crew(bystander, 2) as crew:
        done = crew.map("step", list(range(40)))
    assert len({pid for pid, _ in done}) == 2
    assert max(own for _, own in done) < size / 10


# ---- facts alone ---------------------------------------------------------------------


def test_facts_alone_are_a_model_of_the_clock():
    said = {"parameters": 1.1e9, "trainable": 2.2e6, "flops_per_sample": 2.2e9}
    known = model_facts(spec(facts=said), (3,), 2)
    assert known == ModelFacts(
        (3,), 2, 2_200_000, 0, 2_200_000_000, 4_404_400_000, base=1_097_800_000
    )


def test_facts_alone_learn_nothing():
    said = {"parameters": 100, "flops_per_sample": 200}
    with pytest.raises(simfed.SimfedError, match=r"prototypes\.a\.facts: facts alone"):
        run({"facts": said})


def test_a_round_of_a_billion_parameters_by_hand():
    """The shipped scenario: bytes over rates and latency, FLOPs over FLOP/s."""
    done = simfed.run("scenarios/billion.yaml", time_only=True)
    d = 22 * 16 * (2 * (2048 + 2048) + 2 * (2048 + 256))
    forward = 2 * 1.1e9 * 256
    training = 4 * forward * (2 + d / 1.1e9) / 800e9
    # twenty downloads share no line: 1 Gbps is more than 20 · 40 Mbps
    down, up = 4 * d / 5e6 + 0.025, 4 * d / 1.25e6 + 0.025
    rows = done.participations
    assert len(rows) == 5 * 20
    assert set(rows["uplink_bytes"]) == {4.0 * d}
    assert rows["training_s"].to_numpy() == pytest.approx(training)
    assert rows["downlink_s"].to_numpy() == pytest.approx(down)
    assert rows["uplink_s"].to_numpy() == pytest.approx(up)
    assert done.rounds["duration_s"].to_numpy() == pytest.approx(training + down + up)
    joules = 5 * training + 1.5 * down + 2.5 * up
    assert rows["energy_j"].to_numpy() == pytest.approx(joules)
