"""A judge that does not trust the crawler: a known site, an access log, faults by a schedule, and a verifier."""
