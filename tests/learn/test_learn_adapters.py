"""What trains of a model: adapters, the head, all; pretrained weights; facts alone."""

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
from simfed.learn.models.adapters import AdaptedLinear
from simfed.scenario.prototype import PrototypeSpec

LINEAR = {"rank": 4, "targets": ["1", "3"]}
TEXT = (12,), 20


def build(shape, classes, seed=0, **keys):
    return build_model(PrototypeSpec(**keys), shape, classes, seed=seed)


def state(module):
    return {n: p for n, p in module.state_dict().items() if p.is_floating_point()}


def save(tensors, folder):
    save_file(tensors, folder / "base.safetensors")
    return str(folder / "base.safetensors")


def test_an_adapted_layer_is_at_first_the_layer_alone():
    def built(seed, **keys):
        return build(*TEXT, seed, model="causal-transformer", **keys)

    adapted, other = (built(seed, adapters={"rank": 2}) for seed in (3, 4))
    x = torch.arange(24).view(2, 12) % 20
    assert torch.equal(built(3)(x), adapted(x))
    layer = adapted.blocks[1].attend
    assert not layer.B.any()
    assert not isinstance(adapted.blocks[1].up, AdaptedLinear)
    assert not torch.equal(other.blocks[1].attend.A, layer.A)


def test_what_adapters_add_is_their_scaled_product():
    """W + (alpha/rank)·B·A, as it is written; they alone train."""
    adapters = {**LINEAR, "alpha": 6}
    module = build((1, 3, 3), 3, model="perceptron", adapters=adapters)
    trains = {n: p for n, p in module.named_parameters() if p.requires_grad}
    assert [*trains] == ["1.A", "1.B", "3.A", "3.B"]
    for parameter in trains.values():
        nn.init.normal_(parameter, std=0.1)
    x = torch.randn(5, 9)
    h = x
    for k in (1, 3):
        product = 6 / 4 * (module[k].B @ module[k].A)
        h = F.linear(h, module[k].weight + product, module[k].bias).relu()
    torch.testing.assert_close(module(x), module[5](h), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("keys", [
    {"model": "lenet5-half", "train": "head"},
    {"model": "lenet5-half", "adapters": {"rank": 3, "targets": ["fc*"]}},
    {"model": "lenet5-half", "adapters": {"rank": 3, "targets": "fc2"}},
    {"model": "perceptron", "adapters": LINEAR},
    {"model": "perceptron", "adapters": {"rank": 4, "targets": ["3"]}},
    {"model": "perceptron", "train": "head"},
    {"model": "resnet18", "train": "head"},
    {"model": "resnet18", "adapters": {"rank": 2, "targets": ["head"]}},
])  # fmt: skip
def test_facts_known_without_torch_are_those_of_the_module(keys):
    """Sizes, shapes, and FLOPs as PyTorch counts them, forward and backward."""
    model = PrototypeSpec(**keys), (3, 16, 16), 7
    assert model_facts(*model) == count_facts(*model)


def test_batch_norm_of_a_base_stands_still():
    module = build((3, 8, 8), 4, model="resnet18", train="head")
    before, flat = copy.deepcopy(module.state_dict()), FlatModel(module)
    assert (flat.parameters, flat.statistics.numel()) == (512 * 4 + 4, 0)
    x = torch.randn(6, 3, 8, 8)
    assert torch.allclose(module.train()(x), module.eval()(x))
    module.train()(x).sum().backward()
    assert all(torch.equal(v, before[n]) for n, v in module.state_dict().items())


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_safetensors_come_back_as_float32(tmp_path, kind):
    module = build((3, 8, 8), 4, 5, model="resnet18")
    saved = {n: t.to(kind) for n, t in state(module).items()}
    file = save(saved, tmp_path)
    again = state(build((3, 8, 8), 4, 6, model="resnet18", pretrained=file))
    assert again.keys() == saved.keys()
    assert all(torch.equal(again[name], t.float()) for name, t in saved.items())


@pytest.mark.parametrize(("name", "shape", "problem"), [
    ("1.weight", (200, 5), "tensor 1.weight has shape 200×5, the model's has 200×4"),
    ("5.bias", None, "tensor 5.bias is missing, the model's has 3"),
    ("7.bias", (3,), "the model has no tensor 7.bias, here of 3"),
])  # fmt: skip
def test_weights_that_do_not_fit_are_named(tmp_path, name, shape, problem):
    """Without torch before a run, and where a module is built."""
    tensors = state(build((1, 2, 2), 3, model="perceptron"))
    tensors.pop(name, None)
    file = save(tensors | ({name: torch.zeros(shape)} if shape else {}), tmp_path)
    model = PrototypeSpec(model="perceptron", pretrained=file)
    for ask in (model_facts, count_facts):
        with pytest.raises(simfed.InputError) as error:
            ask(model, (1, 2, 2), 3)
        assert (error.value.problem, error.value.where) == (problem, file)


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    tensors = state(build((1, 2, 2), 3, model="perceptron"))
    tensors["3.bias"][7] = torch.nan
    file = save(tensors, tmp_path)
    with pytest.raises(simfed.InputError, match=r"tensor 3\.bias: expected finite"):
        build((1, 2, 2), 3, model="perceptron", pretrained=file)


# ---- folders of GPT-2's layout -------------------------------------------------------

SIZES = {
    "model_type": "gpt2", "vocab_size": 30, "n_positions": 16, "n_embd": 8,
    "n_layer": 2, "n_head": 2,
}  # fmt: skip
SHAPES = {
    "ln_1": (8,), "attn.c_attn": (8, 24), "attn.c_proj": (8, 8),
    "ln_2": (8,), "mlp.c_fc": (8, 32), "mlp.c_proj": (32, 8),
}  # fmt: skip


def write_folder(path, prefix=""):
    """Write a folder as the library does; return its path."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(SIZES))
    shapes = {"wte.weight": (30, 8), "wpe.weight": (16, 8)}
    layers = {f"h.{k}.{name}": SHAPES[name] for k in (0, 1) for name in SHAPES}
    for name, shape in {**layers, "ln_f": (8,)}.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[-1:]}
    masks = dict.fromkeys(("h.0.attn.bias", "h.1.attn.bias"), (1, 1, 16, 16))
    tensors = {prefix + n: torch.randn(s) for n, s in {**shapes, **masks}.items()}
    save_file(tensors, path / "model.safetensors")
    return str(path)


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_a_folder_of_gpt2s_layout_loads_by_its_config(tmp_path, prefix):
    """Names, matrices turned, and a head that is the embedding; by hand at one place.

    At the first place attention sees itself alone: its values, projected.
    """
    folder = write_folder(tmp_path / "tiny", prefix)
    module = build((9,), 26, pretrained=folder).eval()
    w = load_file(f"{folder}/model.safetensors")

    def of(name):
        return w[f"{prefix}{name}.weight"], w[f"{prefix}{name}.bias"]

    def norm(x, name):
        return F.layer_norm(x, (8,), *of(name))

    def times(x, name):
        weight, bias = of(name)
        return x @ weight + bias

    table = w[f"{prefix}wte.weight"]
    x = table[[3]] + w[f"{prefix}wpe.weight"][:1]
    for k in ("h.0", "h.1"):
        value = times(norm(x, f"{k}.ln_1"), f"{k}.attn.c_attn")[:, 16:]
        x = x + times(value, f"{k}.attn.c_proj")
        up = times(norm(x, f"{k}.ln_2"), f"{k}.mlp.c_fc")
        cubic = (2 / torch.pi) ** 0.5 * (up + 0.044715 * up**3)
        x = x + times(0.5 * up * (1 + cubic.tanh()), f"{k}.mlp.c_proj")
    wanted = norm(x, "ln_f") @ table[:26].T
    answer = module(torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5]]))
    assert answer.shape == (1, 9, 26)
    torch.testing.assert_close(answer[0, :1], wanted, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("width", "keys", "passes"), [
    (128, {"train": "head"}, 1), (128, {"adapters": {"rank": 2}}, 3),
    (8, {}, 3), (8, {"adapters": {"rank": 2}}, 3),
])  # fmt: skip
def test_facts_of_a_decoder_are_those_of_the_module_and_its_attention(
    tmp_path, width, keys, passes
):
    """PyTorch's counter leaves out attention: two products, twice that backward."""
    base = {"model": "causal-transformer"}
    if width == 8:
        base = {"pretrained": write_folder(tmp_path / "tiny")}
    model = PrototypeSpec(**base, **keys), *TEXT
    known, counted = model_facts(*model), count_facts(*model)
    pairs = 2 * 2 * 2 * 12 * 12 * width
    assert known.forward_flops - counted.forward_flops == pairs
    assert known.train_flops - counted.train_flops == passes * pairs
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
    ours = build((24,), 61, pretrained=str(tmp_path / "tiny")).eval()
    x = torch.randint(61, (5, 24))
    wanted = theirs(x).logits
    assert wanted.std() > 0.5
    torch.testing.assert_close(ours(x), wanted, atol=1e-5, rtol=1e-5)


# ---- runs ----------------------------------------------------------------------------


def run(prototype, out=None, **keys):
    plain = {
        "prototypes.a": prototype, "clients[0].count": 3, "policy.strategy": "dense",
        "training": {"local_steps": 2, "batch_size": 8, "learning_rate": 0.1},
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


def test_learning_starts_from_the_base_and_another_one_is_noticed(tmp_path):
    digests = {run(ADAPTED).manifest["data"]["mnist-mini"]}
    for bias in (30.0, 31.0):
        tensors = state(build((1, 28, 28), 10, model="perceptron"))
        tensors["5.bias"][3] += bias  # it takes everything for a 3
        done = run({**ADAPTED, "pretrained": save(tensors, tmp_path)})
        digests.add(done.manifest["data"]["mnist-mini"])
        last = done.prototypes.iloc[-1]
        assert last.test_accuracy == pytest.approx(0.1)
        assert last.test_loss > 10
    assert len(digests) == 3


def test_the_base_travels_once_where_it_is_charged():
    keys = {"charge": {"base": True}, "participation": {"clients_per_round": 2}}
    done = run(ADAPTED, rounds=4, **keys)
    rows = done.participations
    first = ~rows.client.duplicated()
    assert (rows.downlink_bytes == 4 * D + 4 * 199_210 * first).all()
    assert first.sum() == 3


def own_bytes(tensor):
    """The bytes of a tensor in pages that no other process maps (pagemap, bit 56)."""
    page = os.sysconf("SC_PAGESIZE")
    first, last = ((tensor.data_ptr() + at) // page for at in (0, tensor.nbytes - 1))
    with open("/proc/self/pagemap", "rb") as table:
        table.seek(8 * first)
        entries = np.frombuffer(table.read(8 * (last - first + 1)), dtype=np.uint64)
    return page * int((entries >> np.uint64(56) & np.uint64(1)).sum())


class Bystander:
    """Holds a model; a unit of work is a step on its adapters."""

    def __init__(self, module):
        self.flat = FlatModel(module)
        parameters = self.flat.module.parameters()
        self.base = [p for p in parameters if not p.requires_grad]

    def step(self, seed):
        gradient = torch.zeros_like(self.flat.weights)
        self.flat.accumulate_into(gradient)
        self.flat.module(torch.ones(2, 3, 200, 200)).sum().backward()
        self.flat.accumulate_into(None)
        self.flat.weights -= gradient
        time.sleep(0.01)  # so that both have some
        return os.getpid(), sum(map(own_bytes, self.base))


def test_workers_share_the_memory_of_the_base():
    """Of a base of 96 MB no worker has more than a tenth in pages of its own."""
    adapters = {"rank": 2, "targets": ["1"]}
    module = build((3, 200, 200), 5, model="perceptron", adapters=adapters)
    bystander, size = Bystander(module), 96e6
    assert bystander.step(0)[1] > 0.9 * size  # before there is a second process
    with Crew(bystander, 2) as crew:
        pids, own = zip(*crew.map("step", list(range(40))), strict=True)
    assert len(set(pids)) == 2
    assert max(own) < size / 10


# ---- facts alone ---------------------------------------------------------------------


def test_facts_alone_are_a_model_of_the_clock():
    said = {"parameters": 1.1e9, "trainable": 2.2e6, "flops_per_sample": 2.2e9}
    known = model_facts(PrototypeSpec(facts=said), (3,), 2)
    assert known == ModelFacts(
        (3,), 2, 2_200_000, 0, 2_200_000_000, 4_404_400_000, base=1_097_800_000
    )


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
    assert done.rounds["duration_s"].to_numpy() == pytest.approx(training + down + up)
    joules = 5 * training + 1.5 * down + 2.5 * up
    assert rows["energy_j"].to_numpy() == pytest.approx(joules)
