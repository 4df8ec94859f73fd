"""Static buffers, captured graphs, plans, lanes and noise; torch only, never rclpy."""
