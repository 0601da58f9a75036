"""HOW a record is keyed, decided and kept: the pure core, the state, and the log's wiring."""

if __name__ != "crawlog.streams":  # a second copy, in which Faust would find no agents
    raise ImportError(f"import crawlog.streams, not {__name__} (faust -A crawlog.streams.app:fetch worker)")
