"""Vertical learning: every node has some columns of all rows, the server has the
classes.
"""

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

client, server = ClientApp(), ServerApp()
ROWS, COLUMNS, EMBEDDED = 6_000, 60, 4


def bottom(context: Context) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A node's part of the net, as its state has it, and its columns in batches."""
    torch.manual_seed(int(context.node_config["partition-id"]))
    hidden = int(context.run_config["hidden-units"])
    net = nn.Sequential(
        nn.Linear(COLUMNS, hidden), nn.ReLU(), nn.Linear(hidden, EMBEDDED)
    )
    columns = torch.randn(ROWS, COLUMNS)
    if "net" in context.state:
        net.load_state_dict(context.state["net"].to_torch_state_dict())
    return net, columns.split(int(context.run_config["batch-size"]))


def reply_to(message: Message, **content: ArrayRecord) -> Message:
    """A reply that says how many rows were gone through."""
    metrics = MetricRecord({"num-examples": ROWS})
    return Message(RecordDict({**content, "metrics": metrics}), reply_to=message)


@client.query("embed")
def embed(message: Message, context: Context) -> Message:
    """What the node's part of the net makes of its columns."""
    net, batches = bottom(context)
    with torch.no_grad():
        embedded = torch.cat([net(batch) for batch in batches])
    return reply_to(message, arrays=ArrayRecord([embedded.numpy()]))


@client.train("apply")
def apply(message: Message, context: Context) -> Message:
    """A step for every batch, by the gradients that the server sends."""
    net, batches = bottom(context)
    gradients = torch.tensor(message.content["arrays"].to_numpy_ndarrays()[0])
    optimizer = torch.optim.Adam(net.parameters())
    for batch, gradient in zip(
        batches, torch.tensor(gradients).split(len(batches[0])), strict=True
    ):
        optimizer.zero_grad()
        net(batch).backward(gradient)
        optimizer.step()
    context.state["net"] = ArrayRecord(net.state_dict())
    return reply_to(message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Ask for embeddings, learn on them, send back their gradients."""
    nodes = list(grid.get_node_ids())
    torch.manual_seed(0)
    classes, head = torch.randint(2, (ROWS,)), nn.Linear(EMBEDDED * len(nodes), 2)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(int(context.run_config["num-server-rounds"])):
        asked = [Message(RecordDict(), node, "query.embed") for node in nodes]
        replies = {
            reply.metadata.src_node_id: reply for reply in grid.send_and_receive(asked)
        }
        arrays = [
            replies[node].content["arrays"].to_numpy_ndarrays()[0] for node in nodes
        ]
        parts = [torch.tensor(array).requires_grad_() for array in arrays]
        optimizer.zero_grad()
        F.cross_entropy(head(torch.cat(parts, dim=1)), classes).backward()
        optimizer.step()
        contents = [
            RecordDict({"arrays": ArrayRecord([p.grad.numpy()])}) for p in parts
        ]
        pairs = zip(contents, nodes, strict=True)
        list(
            grid.send_and_receive(
                [Message(c, node, "train.apply") for c, node in pairs]
            )
        )
