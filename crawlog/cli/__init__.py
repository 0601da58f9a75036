"""The command line: arguments in, one command called, its result rendered, an exit code out."""
