"""Frozen execution states: what they are, when they fit, and where they are kept."""
