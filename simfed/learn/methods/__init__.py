"""The federated methods, one file each. Importing them imports no torch."""
