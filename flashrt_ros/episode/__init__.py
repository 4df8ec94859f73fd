"""One id over policy, planner and simulator: taken and brought back all or none."""
