"""What the engine tells of its work: activity, heartbeat, steps."""
