"""What trains of a model: adapters, the head, all; pretrained weights; facts alone."""

from __future__ import annotations

import copy
import json
import os
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

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


def test_training_an_adapter_is_that_of_plain_pytorch():
    """Against W + (alpha/rank)·B·A, differentiated as it is written."""
    adapters = {**LINEAR, "alpha": 6}
    model = spec(model="perceptron", adapters=adapters)
    module = build_model(model, (1, 3, 3), 3, seed=1)
    flat = FlatModel(module)
    layers = [layer for layer in module if isinstance(layer, nn.Linear)]
    W = [layer.weight.detach().clone() for layer in layers]
    b = [layer.bias.detach().clone() for layer in layers]
    A = [layer.A.detach().clone().requires_grad_() for layer in layers[:2]]
    B = [layer.B.detach().clone().requires_grad_() for layer in layers[:2]]
    x, y = torch.randn(5, 1, 3, 3), torch.arange(5) % 3

    def loss_of_products():
        h = x.flatten(1)
        for i in range(3):
            weight = W[i] + 6 / 4 * (B[i] @ A[i]) if i < 2 else W[i]
            h = h @ weight.T + b[i]
            h = h.relu() if i < 2 else h
        return F.cross_entropy(h, y)

    for _ in range(4):
        gradient = torch.zeros_like(flat.weights)
        flat.accumulate_into(gradient)
        F.cross_entropy(module(x), y).backward()
        flat.accumulate_into(None)
        flat.weights -= 0.5 * gradient
        plain = torch.autograd.grad(loss_of_products(), [*A, *B])
        with torch.no_grad():
            for tensor, slope in zip([*A, *B], plain, strict=True):
                tensor -= 0.5 * slope
    assert flat.weights.numel() == sum(t.numel() for t in (*A, *B))
    for i, layer in enumerate(layers[:2]):
        torch.testing.assert_close(layer.A.detach(), A[i].detach(), atol=1e-6, rtol=0)
        torch.testing.assert_close(layer.B.detach(), B[i].detach(), atol=1e-6, rtol=0)
        assert layer.B.any()
    for layer, weight in zip(layers, W, strict=True):
        assert torch.equal(layer.weight, weight)


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


@pytest.mark.parametrize("keys", [{"train": "head"}, {"adapters": {"rank": 2}}])
def test_facts_of_a_transformer_are_those_of_the_module_and_its_attention(keys):
    """PyTorch's counter leaves out attention: two products, twice that backward."""
    model = spec(model="causal-transformer", **keys)
    known, counted = model_facts(model, *TEXT), count_facts(model, *TEXT)
    pairs = 2 * 2 * 2 * 12 * 12 * 128
    assert known.forward_flops - counted.forward_flops == pairs
    backward = 0 if "train" in keys else 2
    assert known.train_flops - counted.train_flops == (1 + backward) * pairs
    for name in ("parameters", "base", "buffers", "shapes", "names", "features"):
        assert getattr(known, name) == getattr(counted, name)


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


def test_safetensors_come_back(tmp_path):
    module = build_model("resnet18", (3, 8, 8), 4, seed=5)
    file = save(module, tmp_path / "base.safetensors")
    again = build_model(spec(model="resnet18", pretrained=file), (3, 8, 8), 4, seed=6)
    for name, tensor in state(module).items():
        assert torch.equal(state(again)[name], tensor), name
    weights = Weights(file)
    assert weights.shapes["head.weight"] == (4, 512)


def test_half_precision_is_read_as_float32(tmp_path):
    module = build_model("perceptron", (1, 2, 2), 3, seed=5)
    file = str(tmp_path / "base.safetensors")
    save_file({n: t.bfloat16() for n, t in state(module).items()}, file)
    again = build_model(spec(model="perceptron", pretrained=file), (1, 2, 2), 3, seed=6)
    for name, tensor in state(module).items():
        assert torch.equal(state(again)[name], tensor.bfloat16().float()), name


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


@pytest.mark.parametrize("keys", [{}, {"adapters": {"rank": 2}}])
def test_facts_of_a_folder_are_those_of_its_module(tmp_path, keys):
    model = spec(pretrained=write_folder(tmp_path / "tiny"), **keys)
    known, counted = model_facts(model, (9,), 26), count_facts(model, (9,), 26)
    for name in ("parameters", "base", "shapes", "names", "features", "classes"):
        assert getattr(known, name) == getattr(counted, name)
    pairs = 2 * 2 * 2 * 9 * 9 * 8
    assert known.forward_flops - counted.forward_flops == pairs
    assert known.train_flops - counted.train_flops == 3 * pairs


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


def world(prototype, **keys):
    return {
        "name": "w", "rounds": 2, "method": "fedavg", "dataset": {"name": "mnist-mini"},
        "prototypes": {"p": prototype}, "seed": 3,
        "clients": [{"prototype": "p", "count": 3,
                     "device": {"training": "10 ms", "compression": "1 ms"},
                     "link": {"up": "8 Mbps", "down": "8 Mbps"}}],
        "training": {"local_steps": 2, "batch_size": 8, "learning_rate": 0.1},
        "compression": {"strategies": ["dense"]},
        **keys,
    }  # fmt: skip


def run(prototype, out=None, workers=1, **keys):
    return simfed.run(world(prototype, **keys), out=out, workers=workers)


ADAPTED = {"model": "perceptron", "adapters": LINEAR}
D = 4 * (784 + 200) + 4 * (200 + 200)


def test_only_what_trains_travels_and_is_saved(tmp_path):
    done = run(ADAPTED, tmp_path / "r", checkpoint={"every": 1})
    sent = done.participations
    assert set(sent["uplink_bytes"]) == set(sent["downlink_bytes"]) == {4.0 * D}
    assert done.manifest["models"]["p"]["parameters"] == D
    assert done.manifest["models"]["p"]["model"] == "perceptron/adapters-4-1-3"
    saved = sum(f.stat().st_size for f in (tmp_path / "r").rglob("*") if f.is_file())
    assert saved < 4 * 199_210  # the base alone


def test_residuals_are_of_what_trains():
    done = run(ADAPTED, compression={"strategies": ["top-k"], "k": "1%"})
    assert set(done.participations["k"]) == {round(D * 0.01)}


def test_workers_decide_no_bit():
    one, two = run(ADAPTED), run(ADAPTED, workers=2)
    assert one.manifest["fingerprint"] == two.manifest["fingerprint"]


def test_each_method_trains_what_trains():
    for method in ("fedprox", "scaffold", "local-only", "fedkd"):
        keys = {} if method != "fedkd" else {"dataset": {"name": "mnist-mini"}}
        done = run({"model": "perceptron", "train": "head"}, method=method, **keys)
        assert done.manifest["models"]["p"]["parameters"] == 201 * 10


def test_a_better_start_is_a_better_start(tmp_path):
    """One round from what was learned is better than one from a draw."""
    module = build_model("perceptron", (1, 28, 28), 10, seed=0)
    data = simfed.learn.data.load_dataset("mnist-mini")
    x = torch.tensor(data.train_images[:2000]).float().div(255).flatten(1)
    y = torch.tensor(data.train_labels[:2000]).long()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(40):
        for part in range(0, 2000, 200):
            rows = slice(part, part + 200)
            loss = F.cross_entropy(module(x[rows].view(-1, 1, 28, 28)), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    file = save(module, tmp_path / "base.safetensors")
    started = run({**ADAPTED, "pretrained": file}).prototypes["test_accuracy"]
    drawn = run(ADAPTED).prototypes["test_accuracy"]
    assert started.iloc[-1] > 0.5 > drawn.iloc[-1]


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


def shared_out_bytes(pid: int) -> int:
    """The memory of a process, shared pages in equal parts (PSS)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * int(text.partition("Pss:")[2].split()[0])


class Bystander:
    """Holds a model; a unit of work is a step on its adapters."""

    def __init__(self, module: nn.Module) -> None:
        self.flat = FlatModel(module)

    def step(self, seed: int) -> int:
        gradient = torch.zeros_like(self.flat.weights)
        self.flat.accumulate_into(gradient)
        self.flat.module(torch.ones(2, 3, 200, 200)).sum().backward()
        self.flat.accumulate_into(None)
        self.flat.weights -= gradient
        time.sleep(0.01)  # so that both have some
        return os.getpid()


def test_workers_share_the_memory_of_the_base():
    """A second worker adds less than a quarter of what a base of 96 MB takes."""
    adapters = {"rank": 2, "targets": ["1"]}
    module = build_model(
        spec(model="perceptron", adapters=adapters), (3, 200, 200), 5, seed=0
    )
    base = 4 * sum(p.numel() for p in module.parameters() if not p.requires_grad)
    assert base > 96e6
    bystander = Bystander(module)
    bystander.step(0)
    before = shared_out_bytes(os.getpid())
    with Crew(bystander, 2) as crew:
        who = {os.getpid(), *crew.map("step", list(range(40)))}
        after = sum(map(shared_out_bytes, who))
    assert len(who) == 2
    assert after - before < base / 4


# ---- facts alone ---------------------------------------------------------------------


def test_facts_alone_are_a_model_of_the_clock():
    said = {"parameters": 1.1e9, "trainable": 2.2e6, "flops_per_sample": 2.2e9}
    known = model_facts(spec(facts=said), (3,), 2)
    assert known == ModelFacts(
        (3,), 2, 2_200_000, 0, 2_200_000_000, 4_404_400_000, base=1_097_800_000
    )


def test_facts_alone_learn_nothing():
    said = {"parameters": 100, "flops_per_sample": 200}
    with pytest.raises(simfed.SimfedError, match=r"prototypes\.p\.facts: facts alone"):
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
