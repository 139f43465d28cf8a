"""Pictures of the dashboards: their own queries, run by a real Prometheus, and drawn as Grafana would lay them out."""
