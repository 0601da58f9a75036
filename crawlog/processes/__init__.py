"""The processes of a crawl on this machine: who starts, watches and stops whom."""
