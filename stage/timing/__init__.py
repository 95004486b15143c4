"""What a stage measures: counters for heartbeats and Prometheus, and where the time of a request went."""
