"""OpenAI's Responses API over the same turns as all other answers.

Public API: `service.Responses`. The call of the model, the context and the storage are those of `generation.service`.
"""
