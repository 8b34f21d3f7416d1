"""The subcommands of `timm-gcp`, one module each: `add_arguments(parser)` and `main(args)`."""
