"""From a pile of events to a verdict: what was falsified, what was confirmed, what is undecided."""
