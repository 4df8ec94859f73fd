"""The demo: every promise of the package, shown on a simulated robot and measured."""
