"""Tasks of a scenario's clients in work and bytes, and the price of its privacy."""
