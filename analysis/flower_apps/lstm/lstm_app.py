"""A recurrent net on texts."""

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

VOCABULARY, WORDS, TEXTS = 50, 30, 4_000


class Net(nn.Module):
    """Guesses the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.look_up = nn.Embedding(VOCABULARY, 32)
        self.read = nn.LSTM(32, 64, batch_first=True)
        self.out = nn.Linear(64, VOCABULARY)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.read(self.look_up(words))[0][:, -1])


server = ServerApp()
client = ClientApp()


def texts_of(context: Context) -> torch.Tensor:
    """A node's texts: words of a random walk, so that the next one can be guessed."""
    count = TEXTS // int(context.node_config["num-partitions"])
    rng = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    return (
        torch.randint(-2, 3, (count, WORDS + 1), generator=rng).cumsum(1) % VOCABULARY
    )


@client.train()
def train(message: Message, context: Context) -> Message:
    """Epochs over the node's texts."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.Adam(net.parameters())
    texts = texts_of(context)
    for _ in range(int(context.run_config["local-epochs"])):
        for batch in texts[torch.randperm(len(texts))].split(
            int(context.run_config["batch-size"])
        ):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(batch[:, :-1]), batch[:, -1])
            loss.backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(texts), "train_loss": loss.item()})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """How often the next word is guessed."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    texts = texts_of(context)
    with torch.no_grad():
        outputs = torch.cat([net(batch[:, :-1]) for batch in texts.split(128)])
    right = (outputs.argmax(1) == texts[:, -1]).float().mean().item()
    metrics = MetricRecord({"num-examples": len(texts), "eval_acc": right})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Federated averaging."""
    strategy = FedAvg(min_available_nodes=2)
    start = ArrayRecord(Net().state_dict())
    strategy.start(grid, start, num_rounds=int(context.run_config["num-server-rounds"]))
