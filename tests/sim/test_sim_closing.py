"""A merge under way, as a checkpoint keeps it."""
