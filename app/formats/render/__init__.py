"""Canonical turns written as the messages of each provider. Entered through `formats.service`."""
