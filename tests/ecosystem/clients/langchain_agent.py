"""An agent of langchain with a conversation and a long-term memory: prints its answers to some messages."""

import asyncio
import json
import os
import sys

from langchain.agents import create_agent
from langchain_core.messages import AIMessageChunk
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

URL, KEY = os.environ["TURNKEEP_URL"], os.environ["TURNKEEP_API_KEY"]


async def converse(mode: str, project: str, conversation: str, messages: list[str]) -> list[str]:
    """The answers of the agent to messages of one session; a header of every chat completion names the conversation."""
    headers = {"Authorization": f"Bearer {KEY}"}
    memory = MultiServerMCPClient({"turnkeep": {"transport": "http", "url": f"{URL}/mcp", "headers": headers}})
    model = ChatOpenAI(
        model="fake-chat",
        base_url=f"{URL}/openai/v1",
        api_key=KEY,
        default_headers={"X-Project": project, "X-Conversation-Id": conversation},
    )
    agent = create_agent(
        model,
        await memory.get_tools(),
        system_prompt="Remember what the user tells you.",
        checkpointer=InMemorySaver(),
    )
    thread = {"configurable": {"thread_id": conversation}}
    answers: list[str] = []
    for message in messages:
        asked = {"messages": [{"role": "user", "content": message}]}
        if mode == "streamed":
            pieces = [piece async for piece, _ in agent.astream(asked, thread, stream_mode="messages")]
            answers.append("".join(str(piece.text) for piece in pieces if isinstance(piece, AIMessageChunk)))
        else:
            answers.append(str((await agent.ainvoke(asked, thread))["messages"][-1].text))
    return answers


json.dump(asyncio.run(converse(*sys.argv[1:4], sys.argv[4:])), sys.stdout)
