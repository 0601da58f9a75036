"""WHEN it runs: the thin edges, in the order of a URL's path."""
