"""From recorded events to a verdict: what is falsified, what is confirmed, what is undecided."""
