"""Options, tables, progress bars and output that several commands share."""
