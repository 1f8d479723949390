"""Manifests for schedulers and clusters, made from one job configuration: `dpiframe deploy`."""
