"""The outside model world behind Protocols: embedders and token counters."""
