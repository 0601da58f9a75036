"""Parse: pages in, items and founds out; an offset is committed once the log has all outputs before it.

    crawl.pages ─► parse_agent ─► stage ─► default spider, under the guard ─► outputs ─┬─► crawl.items, .urls, .control
                                  │   ▲                                        └─► crawl.dead
                                  ▼   │ turns
                     large pages, untried pages, pages of unknown jobs, pages without a body (`stored_bodies`),
                     pages for users' spiders, in processes of their own (`spider_pages`),
                     pages of a long partition, in helper processes (`lending`, `helper`),
                     stored pages of a job that are parsed again (`stored_pages`)

`page_steps` unpacks and parses one page, `guard` bounds its time and memory. `turns` decides when a waiting page is
parsed. The decisions about a page are in `streams/parse/`. Only `parse_agent` knows Faust.
"""
