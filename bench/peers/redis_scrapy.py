"""scrapy-redis with a real Redis: the documented spider, its queue and duplicates filter in a redis-server of its own.

Redis runs with its default settings (snapshots on) in the current folder. `python redis_scrapy.py SEEDS OUT`
"""

import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    """Redis up, one crawl, Redis down."""
    server = shutil.which("redis-server")
    if server is None:
        sys.exit("no redis-server: apt-get install redis-server")
    port = free_port()
    redis = subprocess.Popen([server, "--port", str(port), "--bind", "127.0.0.1", "--dir", "."])
    try:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        spider = Path(__file__).with_name("scrapy_documented.py")
        return subprocess.call([sys.executable, str(spider), *sys.argv[1:3], f"redis://127.0.0.1:{port}"])
    finally:
        redis.send_signal(signal.SIGTERM)
        redis.wait()


if __name__ == "__main__":
    sys.exit(main())
