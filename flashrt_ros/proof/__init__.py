"""Showing that a model's declared state is its whole state; on runtime and models alone."""
