"""Pages that people look at, served under /dashboard: files of this package, nothing from elsewhere."""
