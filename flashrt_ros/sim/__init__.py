"""The demo robot: a pusher on a table with a T-shaped block; only its node imports ROS."""
