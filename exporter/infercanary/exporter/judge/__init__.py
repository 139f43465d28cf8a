"""Did the last upgrade change latency, by how much, and why: pure functions on what the store has, and their thread."""
