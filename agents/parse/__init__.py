"""crawlog.agents.parse."""
