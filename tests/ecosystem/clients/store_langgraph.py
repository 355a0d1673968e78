import sys

from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from turnkeep_client import Turnkeep
from turnkeep_client.integrations.langgraph import TurnkeepStore


def answer(state: MessagesState, *, store: BaseStore) -> dict:
    said = state["messages"][-1]
    known = [item.value["text"] for item in store.search(("memories", "mia"), query=said.text, limit=5)]
    store.put(("memories", "mia"), said.id, {"text": said.text})
    return {"messages": ChatOpenAI(model="gpt-5-mini").invoke([("system", f"You know: {known}"), said])}


graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile(store=TurnkeepStore(Turnkeep()))
print(graph.invoke({"messages": [("user", sys.argv[1])]})["messages"][-1].text)
