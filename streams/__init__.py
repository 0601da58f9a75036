"""HOW a record is keyed, decided and kept: the pure core, the state, and the log's wiring."""
