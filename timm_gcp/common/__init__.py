"""What knows no model: files, messages, devices, recipes."""
