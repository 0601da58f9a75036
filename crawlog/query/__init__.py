"""`crawlog query`: SQL over what a log holds. The service's lists come from here too.

    SQL ─► duck: which tables does it name? ─┬─ rows    crawl.items ──┐
                                             ├─ pages   crawl.pages ──┼─► kept_table: Parquet below DATA/query,
                                             ├─ dead    crawl.dead ───┤     extended from its offsets
                                             ├─ urls    crawl.urls ───┘  ─► folded_urls: and the queues of its fold
                                             └─ jobs    crawl.control, crawl.progress: read each time
            tables: what a record gives, and the view that SQL sees: only what counts by epochs, rewinds, newest pages
            duck:   DuckDB without files, network, extensions or settings ─► columns and rows ─► formats: text, files

`ask` gives an `QueryAnswer`, whose rows are read in batches, or a page of them.
"""

from .duck import QueryAnswer, ask
from .formats import shown, write_answer

__all__ = ["QueryAnswer", "ask", "shown", "write_answer"]
