"""WHEN it runs: the thin edges, in the order of a URL's path."""

if __name__ != "crawlog.agents":  # a second copy, in which Faust would find no agents
    raise ImportError(f"import crawlog.agents, not {__name__} (faust -A crawlog.streams.app:fetch worker)")
