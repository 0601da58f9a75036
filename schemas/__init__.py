"""WHAT travels: one file a topic, the records, their versions and codecs."""

if __name__ != "crawlog.schemas":  # a second copy, in which Faust would find no agents
    raise ImportError(f"import crawlog.schemas, not {__name__} (faust -A crawlog.streams.app:fetch worker)")
