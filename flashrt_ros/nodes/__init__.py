"""ROS 2 nodes over the engine client; with ``sim`` the only rooms that import rclpy."""
