"""Turnkeep as the memory of agent frameworks: a module for each, which imports its framework and nothing else does.

`openai_agents` (a session), `langgraph` (a store), `langchain` (a chat message history), `pydantic_ai` (a message
history), `llama_index` (a chat store and a memory block), `autogen` (a memory). Each needs the extra of its name.
`messages`, `history`, `response_items` and `store_items` need no framework.

All take a `Turnkeep`, which works on a thread of its own: so an integration can be used from any thread and event loop.
"""
