"""A Flower app: it knows nothing of simfed but the digits that ship with it."""
