"""The planner engine: a language model that turns instructions into subgoals, behind a socket."""
