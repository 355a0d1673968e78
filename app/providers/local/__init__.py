"""The models that run in this process, on the CPU and offline, and the embedder that uses them.

Public API: `embedder`, with the models of `minilm` (the default) and `multilingual` (an extra). Models of endpoints do
not belong here.
"""
