"""A run checked afterwards: invariants of its tables, its clock derived again, its learning
computed again; and the contract that parts of your own must keep (`simfed.testing`)."""
