"""The subcommands of `timm-gcp`, a file each: its options and its `main`."""
