"""The outside model world behind Protocols: embedders, chat models and token counters."""
