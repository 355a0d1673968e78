"""Renderers from canonical turns to the messages of each provider. Used through `formats.service`."""
