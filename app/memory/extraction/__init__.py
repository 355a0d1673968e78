"""Extraction of facts from turns: by rules, and by a chat model if one is configured."""
