"""ROS 2 policy and planner nodes over a static-buffer runtime with execution-state capsules."""

__version__ = "0.1.0"
