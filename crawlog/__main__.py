"""`python -m crawlog` is `crawlog`."""

from .cli import main

if __name__ == "__main__":
    main()
