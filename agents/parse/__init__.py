"""Parse: pages in, items and founds out; an offset is committed once the log has all outputs before it.

    crawl.pages ─► parse_agent ─► stage: its way ─► spider, under the guard ─► outputs ─► crawl.items, .urls, .control
                                    │    ▲                                        └────► crawl.dead
                                    ▼    │ turns
                     large pages, untried pages, pages of unknown jobs, pages without a body (`stored_bodies`)

`guard` bounds the time and memory of one page. `turns` decides when a page that waits has its turn. What is decided of
a page stands in `streams/parse/`; only `parse_agent` knows of Faust.
"""
