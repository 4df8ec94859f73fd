"""The command ``flashrt-ros``; each subcommand is a module of this package."""
