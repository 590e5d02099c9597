"""When to stop: methods, stopping rule, signals, objectives, oracle, sweeps, heads, thresholds, comparison."""
