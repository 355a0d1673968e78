"""Technology without product words."""
