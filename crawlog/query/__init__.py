"""`crawlog query`: SQL over what a log holds. The service's lists come from here too.

    SQL ─► duck: which tables does it name? ─► log_tables ─┬─ rows    crawl.items ──┐
                                                           ├─ pages   crawl.pages ──┼─► kept_table: Parquet below
                                                           ├─ dead    crawl.dead ───┤   DATA/query, extended by offsets
                                                           ├─ urls    crawl.urls ───┘─► folded_urls: and its queues
                                                           └─ jobs    crawl.control, crawl.progress: read each time
            pipeline_tables: rows that a job's pipelines made, where they lie here, in the place of its items
            tables: what a record gives, and the view that SQL sees: only what counts by epochs, rewinds, newest pages
            duck:   DuckDB without files, network, extensions or settings ─► columns and rows ─► formats: text, files

`ask` gives a `QueryAnswer`: rows in batches, or a page of them. `unchanged`, then `answered`, needs no Kafka where the
local log has not grown.
"""

from .duck import QueryAnswer, answered, ask, named_tables
from .formats import shown, write_answer
from .log_tables import unchanged

__all__ = ["QueryAnswer", "answered", "ask", "named_tables", "shown", "unchanged", "write_answer"]
