"""The engine: one loop over captured graphs, its slot channels, its wire and its client."""
