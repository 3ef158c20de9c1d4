"""What a scenario's clients are asked, in work and bytes, and what its privacy costs."""
