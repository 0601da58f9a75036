"""crawlog.agents.sink."""
