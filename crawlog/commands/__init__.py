"""What commands do, one file each; nothing is loaded that a command does not need."""
