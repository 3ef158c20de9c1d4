"""Learning: models, data, methods, and the host that carries them out. No clock."""
