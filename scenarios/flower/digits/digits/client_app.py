"""What a phone does."""

from digits.task import Net, share, train
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train_on_phone(message: Message, context: Context) -> Message:
    """Train on the phone's own digits."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    own = share(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    config = context.run_config
    loss = train(net, *own, int(config["local-epochs"]), float(config["learning-rate"]))
    metrics = MetricRecord({"num-examples": len(own[0]), "train_loss": loss})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
