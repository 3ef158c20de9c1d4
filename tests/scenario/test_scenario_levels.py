"""Levels in scenario files: arms, what is dumped, the sentence for each wrong one."""

from simfed.cli import main
from simfed.scenario import Scenario, validate_scenario

PLAIN = {
    "name": "tiny",
    "rounds": 3,
    "dataset": {"name": "mnist-mini"},
    "prototypes": {"small": {"model": "lenet5-half"}},
    "clients": [
        {"count": 2, "prototype": "small", "device": {"profile": "x86-2core-vm"}}
    ],
}


def scenario(**changes):
    return validate_scenario({**PLAIN, **changes}, source="tiny.yaml", folder=".")


def test_without_choices_of_k_arms_are_the_strategies():
    plain = scenario()
    assert tuple(map(str, plain.compression.choices)) == plain.compression.strategies
    assert plain.compression.pairs == "full"


def test_arms_are_pairs_and_a_strategy_may_name_its_own_level():
    made = scenario(
        compression={
            "strategies": [
                "top-k",
                {"qsgd": {"levels": 4}},
                "random-k@2%",
                "top-k + fp16",
            ],
            "k_choices": [500, "1 %"],
            "k": 1000,
        }
    )
    assert tuple(map(str, made.compression.choices)) == (
        "top-k@500",
        "top-k@1%",
        "qsgd(4)",
        "random-k@2%",
        "top-k+fp16@500",
        "top-k+fp16@1%",
    )
    assert Scenario.model_validate(made.model_dump(mode="json")) == made


def test_policies_play_what_they_name_or_what_there_is():
    levels = {"strategies": ["top-k"], "k_choices": [5, 50]}

    def arms(**policy):
        made = scenario(compression=levels, policy=policy)
        return tuple(map(str, made.arms_of_group(made.clients[0])))

    assert arms(kind="ucb") == ("top-k@5", "top-k@50")
    assert arms(kind="uniform", strategy="random-k@7") == ("random-k@7",)
    assert arms(kind="adaptive-k", least=3, most=90) == ("top-k@3", "top-k@90")


ASSUMED = (
    "{count: 2, prototype: small, device: {profile: x86-2core-vm, assume: "
    "{compression: 1 ms}}}"
)


def run(tmp_path, capsys, text, *arguments):
    file = tmp_path / "tiny.yaml"
    file.write_text(
        "name: tiny\nrounds: 3\ndataset: {name: mnist-mini}\n"
        "prototypes: {small: {model: lenet5-half}}\n" + text
    )
    code = main(["validate", str(file), *arguments])
    return code, capsys.readouterr()


def test_resolved_shows_the_arms(tmp_path, capsys):
    text = (
        f"clients: [{ASSUMED}]\ncompression: {{k_choices: [500, 1%], strategies: "
        f"[top-k, dense]}}\n"
    )
    code, said = run(tmp_path, capsys, text, "--resolved")
    assert code == 0
    assert "# arms: top-k@500, top-k@1%, dense\n" in said.out


def test_a_rank_above_the_matrices_is_refused_before_anything_runs(tmp_path, capsys):
    text = (
        f"clients: [{ASSUMED}]\ncompression: {{strategies: [{{svd: {{rank: 61}}}}]}}\n"
    )
    code, said = run(tmp_path, capsys, text)
    assert code == 2
    assert (
        "compression.strategies: prototype small: svd: rank: got 61, expected a rank "
        "of at most 60, that of the largest matrix"
    ) in said.err
    assert run(tmp_path, capsys, text.replace("61", "60"))[0] == 0
    text = f"clients: [{ASSUMED}]\npolicy: {{kind: uniform, strategy: powersgd(61)}}\n"
    code, said = run(tmp_path, capsys, text)
    assert code == 2
    assert "policy: prototype small: powersgd: rank: got 61, expected" in said.err


def test_a_codec_whose_time_no_profile_knows_is_one_sentence(tmp_path, capsys):
    text = (
        "clients: [{count: 2, prototype: small, device: x86-2core-vm}]\n"
        "compression: {strategies: [top-k, terngrad], k_choices: [500, 1000]}\n"
    )
    code, said = run(tmp_path, capsys, text)
    errors = [line for line in said.err.splitlines() if line.startswith("simfed:")]
    assert (code, len(errors)) == (2, 1)
    assert "a strategy measured for lenet5-half" in errors[0]
    assert "got 'terngrad(2.5)'" in errors[0]


def test_data_dependent_sizes_are_refused_without_learning(tmp_path, capsys):
    text = (
        "clients: [{count: 2, prototype: small, device: x86-2core-vm}]\n"
        "policy: {kind: uniform, strategy: top-k}\ncompression: {index_code: rice}\n"
    )
    assert run(tmp_path, capsys, text)[0] == 0
    code, said = run(tmp_path, capsys, text, "--time-only")
    assert code == 2
    assert "policy.arms_from: RUN" in said.err
