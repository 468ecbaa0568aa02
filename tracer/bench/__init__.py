"""Benchmarks of the tracer's cost, as ratios measured side by side in one run."""
