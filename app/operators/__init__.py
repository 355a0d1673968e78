"""What those who run an installation ask for."""
