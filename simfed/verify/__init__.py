"""A run checked afterwards: invariants of its tables, its clock derived again, its learning
computed again."""
