"""crawlog.agents.fetch."""
