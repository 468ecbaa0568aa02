"""What the instrument costs, as ratios measured side by side in one run."""
