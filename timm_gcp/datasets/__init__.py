"""Data sets that need a layout of their own."""
