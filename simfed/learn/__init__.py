"""Learning: models, data, methods, and the host that carries them out. No clock."""

from __future__ import annotations

from simfed.ground.lazy import load_names

_HOMES = {
    "ArrivedValues": "vectors",
    "Averaging": "methods",
    "ChangesDown": "apart_changes",
    "ChangesHeld": "apart_changes",
    "Classification": "objective",
    "Crew": "crew",
    "Dataset": "data",
    "DatasetFacts": "catalogue",
    "FedAvg": "methods.fedavg",
    "FedBuff": "methods.fedbuff",
    "FlatModel": "flat",
    "HostedWorkload": "hosted",
    "Kit": "kit",
    "LeNet5": "models",
    "LeNetPasses": "models.lenet_passes",
    "LinearPasses": "models.linear_passes",
    "LogisticRegression": "models",
    "ModelFacts": "catalogue",
    "NextToken": "objective",
    "Parcel": "parcel",
    "Passes": "passes",
    "Published": "data.store",
    "PublishedFile": "data.store",
    "ReluPool": "models.layers",
    "Safeguard": "safeguard",
    "Scaffold": "methods.scaffold",
    "build_model": "models",
    "choose_passes": "passes",
    "compiled": "models.convpool",
    "count_facts": "models",
    "dataset_facts": "catalogue",
    "deal": "data",
    "draw_local": "federation",
    "files_digest": "data",
    "get": "data.fetch",
    "labels_in": "data",
    "load_data": "data",
    "load_dataset": "data",
    "load_federation": "federation",
    "model_facts": "catalogue",
    "pack": "parcel",
    "plain_rounds": "plain",
    "read_answer": "apart",
    "read_mnist": "data.formats",
    "unpack": "parcel",
}

__all__ = sorted(_HOMES)
__getattr__ = load_names(__name__, _HOMES)
