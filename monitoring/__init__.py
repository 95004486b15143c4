"""Metric definitions, the endpoint that exports them, and what Prometheus and Grafana need to show them."""
