"""Data: the published sets, getting and reading them, and dealing them to clients. No torch
here."""

from simfed.learn.data.dataset import Dataset, load_dataset
from simfed.learn.data.partition import Split, deal
from simfed.learn.data.published import CIFAR10, FASHION_MNIST, MNIST, MNIST_MINI

__all__ = [
    "CIFAR10",
    "FASHION_MNIST",
    "MNIST",
    "MNIST_MINI",
    "Dataset",
    "Split",
    "deal",
    "load_dataset",
]
