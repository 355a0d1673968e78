"""HTML pages under /dashboard, from files of this package only."""
