"""How far a crawl is, put together from what workers report."""
