"""The HTTP server of a job's telemetry: OpenTSDB's API for Grafana, /metrics for Prometheus, /health."""
