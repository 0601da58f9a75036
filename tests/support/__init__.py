"""Code that tests share; no test imports from another test.

pure core     folding (records, a fold in memory)  dispatching (dispatcher, fold and a clock)  spiders (what one gives)
stages        fetching (fetch in memory)  parsing (parse in memory)  browsing (what pages in a browser ask for)
HTTP          raw_http (servers byte by byte, a client)  proxies (SOCKS, tunnels, TLS)  sites (whole sites on loopback)
processes     processes (none outlives its test) ──► crawls (`run` on a data folder, a numbered site)
              forked (workers from one process)  ──► cluster (a crawl in parts, to be killed)  probe (a small worker)
Kafka         brokers (of somebody else, killed or set back)  damaging (bytes of its files)
with bench     synthetic_site (in Go)  node, three_brokers (as an operator runs them)  logins  certificates  corpora
pytest        elsewhere (another machine, for the collection)  deployed (what deployed code needs on this machine)
"""
