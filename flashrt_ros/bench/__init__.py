"""Benches: what the package costs beside the limit and beside how people do it today."""
